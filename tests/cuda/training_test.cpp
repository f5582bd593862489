// Whole training runs on a CUDA device, the emulated one or a real one, with the model, code and data of the CPU's
// tests. They detect host code that accesses device memory, a missing wait, or a kernel that depends on the order of
// its blocks.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>

#include "base/files.h"
#include "base/log.h"
#include "bench/step.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "device/cuda/cuda_device.h"
#include "rigs/files.h"
#include "rigs/layouts.h"
#include "run/run_state.h"
#include "setup/gemm_tuning.h"
#include "setup/run_plan.h"
#include "train/generate.h"
#include "train/replica_check.h"
#include "unit/ops/test_device.h"

namespace trainer::tests {
namespace {

std::unique_ptr<device::Device> gpu() { return device::cuda::make_device(0, 2); }
const HowToRun kOnGpu{.device = [](int) { return gpu(); }};

/// Returns a configuration with warm-up and a learning rate of 1e-3, as the guarantees on losses require.
config::Config config_of(config::Arch arch) {
  config::Config c = tiny_config(arch);
  c.optim.lr = 1e-3;
  c.parallel.data = 1;
  return c;
}

struct OnGpu : testing::Test {
  void SetUp() override {
    if (device::cuda::devices().empty()) GTEST_SKIP() << device::cuda::no_device_reason();
  }
};
class EveryModel : public OnGpu, public testing::WithParamInterface<config::Arch> {};
INSTANTIATE_TEST_SUITE_P(Models, EveryModel, testing::Values(config::Arch::gpt2, config::Arch::llama),
                         [](const auto& param) { return param.param == config::Arch::gpt2 ? "gpt2" : "llama"; });

TEST_P(EveryModel, StartsFromTheSameBitsAndFollowsTheCpuInFp32) {
  const config::Config c = config_of(GetParam());
  const Result cpu = train(c, DType::f32, 10), cuda = train(c, DType::f32, 10, kOnGpu);
  EXPECT_TRUE(cuda.start == cpu.start);
  expect_same_gradients(cuda.gradients, cpu.gradients, 1e-5);
  EXPECT_NEAR(cuda.losses.front(), cpu.losses.front(), 1e-6 * cpu.losses.front());
  EXPECT_NEAR(cuda.losses.back(), cpu.losses.back(), 1e-6 * cpu.losses.back());
}

TEST_P(EveryModel, IsAsCloseToDoublePrecisionInBf16AsTheCpu) {
  const config::Config c = config_of(GetParam());
  const Result exact = train(c, DType::f64, 1), cpu = train(c, DType::bf16, 10),
               cuda = train(c, DType::bf16, 10, kOnGpu);
  EXPECT_TRUE(cuda.start == cpu.start);
  for (const auto& [name, values] : exact.gradients) {
    if (is_key_bias(name)) continue;
    EXPECT_LE(relative_error(cuda.gradients.at(name), values), 1.5 * relative_error(cpu.gradients.at(name), values))
        << name;
  }
  EXPECT_NEAR(cuda.losses.back(), cpu.losses.back(), 2e-3 * cpu.losses.back());
}

TEST_P(EveryModel, DoesNotDependOnTheOrderOfBlocksAndThreads) {
  const config::Config c = config_of(GetParam());
  for (const DType compute : {DType::f32, DType::bf16}) {
    const Result first = train(c, compute, 3, kOnGpu);
    ops::testing::for_each_order([&] { expect_same_bits(train(c, compute, 3, kOnGpu), first); });
  }
}

TEST_P(EveryModel, RecomputationChangesNoBit) {
  config::Config c = config_of(GetParam());
  const Result first = train(c, DType::bf16, 2, kOnGpu);
  for (const auto mode : {config::Recompute::selective, config::Recompute::full}) {
    c.train.recompute = mode;
    expect_same_bits(train(c, DType::bf16, 2, kOnGpu), first);
  }
}

TEST_P(EveryModel, TakesTheMemoryOfItsPlan) {
  config::Config c = config_of(GetParam());
  Tiny run(nullptr, c, DType::bf16, gpu());
  run.step(1);
  setup::Machine machine{.threads = 2, .compute = DType::bf16, .gpu = device::cuda::devices().front()};
  const setup::RunPlan plan = setup::plan_run(c, kTinyVocab, machine, true);
  EXPECT_EQ(plan.total, run.device.memory_total());
}

TEST_P(EveryModel, RanksThatShareADeviceFollowOneRank) {
  config::Config c = config_of(GetParam());
  c.model.n_head = 2;
  c.model.n_kv_head = 2;
  c.model.seq_len = 12;
  const Result one = train(c, DType::f32, 4, kOnGpu);
  for (const auto& [tensor, data, zero, sequence] :
       {std::tuple{2, 1, 0, false}, {2, 1, 0, true}, {1, 2, 0, false}, {2, 2, 1, true}}) {
    SCOPED_TRACE(format("tensor {} data {} zero {} sequence {}", tensor, data, zero, sequence));
    config::Config many = c;
    many.parallel.tensor = tensor;
    many.parallel.data = data;
    many.parallel.zero_stage = zero;
    many.parallel.sequence_parallel = sequence;
    const Result result = train(many, DType::f32, 4, kOnGpu);
    EXPECT_TRUE(result.start == one.start);
    expect_same_gradients(result.gradients, one.gradients, 1e-5);
    EXPECT_NEAR(result.losses.back(), one.losses.back(), 1e-6 * one.losses.back());
    expect_predicted_bytes(result, 4);
  }
}

void save(Tiny& run, const std::filesystem::path& folder, int64_t step) {
  checkpoint::CheckpointStore store(folder, {.keep = 1}, system_calls(), run.solo.get());
  checkpoint::Snapshot snapshot;
  snapshot.state.step = snapshot.state.adam_step = step;
  snapshot.tied = run.trainer.config().model.tie_embeddings.value();
  snapshot.tensors = checkpoint::slices_to_save(run.trainer.store(), true);
  store.save(snapshot);
}
void load(Tiny& run, const std::filesystem::path& folder) {
  const checkpoint::Reader reader(folder);
  reader.load(checkpoint::slices_to_fill(run.trainer.store(), true),
              {.tied = run.trainer.config().model.tie_embeddings.value()});
  run.trainer.store().refresh_compute();
}

TEST_P(EveryModel, CheckpointsPassFromOneBackendToTheOther) {
  const config::Config c = config_of(GetParam());
  const TempFolder folder;
  for (const bool from_cpu : {false, true}) {
    SCOPED_TRACE(from_cpu ? "from the CPU" : "from the GPU");
    const auto device = [](bool cpu) { return cpu ? std::make_unique<device::CpuDevice>(2) : gpu(); };
    const auto sub = folder / (from_cpu ? "cpu" : "gpu");
    Tiny writer(nullptr, c, DType::f32, device(from_cpu)), reader(nullptr, c, DType::f32, device(!from_cpu));
    for (int64_t n = 1; n <= 2; ++n) writer.step(n);
    save(writer, sub, 2);
    load(reader, sub);
    EXPECT_TRUE(reader.state() == writer.state());
    Tiny same(nullptr, c, DType::f32, device(from_cpu));  // on the writer's device, training resumes identically
    load(same, sub);
    const double expected = writer.step(3).loss;
    EXPECT_EQ(same.step(3).loss, expected);
    EXPECT_TRUE(same.state() == writer.state());
    EXPECT_NEAR(reader.step(3).loss, expected, 1e-6 * expected);
  }
}

/// Generates `count` texts, three at a time.
std::vector<std::vector<int32_t>> texts_of(Tiny& run, size_t count) {
  train::Generator generator(run.trainer, 3);
  std::vector<std::vector<int32_t>> texts(count);
  size_t begun = 0;
  generator.run([&]() -> std::optional<train::TokenRequest> {
    if (begun == texts.size()) return std::nullopt;
    std::vector<int32_t>& text = texts[begun];
    const auto emit = [&](int32_t id) {
      text.push_back(id);
      return true;
    };
    return train::TokenRequest{{3, 1, 4}, 20, {.temperature = 0.8, .seed = begun++}, {}, emit};
  });
  return texts;
}

TEST_P(EveryModel, EvaluatesAndGeneratesAsTheCpu) {
  const config::Config c = config_of(GetParam());
  Tiny cpu(c, DType::f32, 2), cuda(nullptr, c, DType::f32, gpu());
  data::TokenBatch batch;
  cpu.batches(3, c.train.micro_batch, batch);
  const double expected = cpu.trainer.loss_sum(batch);
  EXPECT_NEAR(cuda.trainer.loss_sum(batch), expected, 1e-6 * expected);
  EXPECT_EQ(texts_of(cuda, 4), texts_of(cpu, 4));
  train::check_replicas(cuda.trainer, 1);
}

setup::Machine machine_of_gpu() {
  return {
      .threads = 2, .compute = DType::bf16, .memory_limit = int64_t{1} << 30, .gpu = device::cuda::devices().front()};
}

TEST_P(EveryModel, TrainsWithMeasuredProductsAndIgnoresAForeignTable) {
  config::Config c = config_of(GetParam());
  c.data.vocab_size = kTinyVocab;
  const TempFolder folder;
  c.hardware.gemm_tuning = folder / "tuning.json";
  const setup::Machine machine = machine_of_gpu();
  const HowToRun on_machine{.device = [&](int) { return setup::make_device(machine); }};
  const auto device = setup::make_device(machine);
  const auto world = comm::solo_world();
  const Result plain = train(c, DType::bf16, 3, kOnGpu);

  ops::MeasuredGemms measured = bench::tune_products(c, machine, 8, 1);
  EXPECT_GE(measured.tuning.products.size(), 10u) << "products of a micro-step";
  const std::string text = to_json(measured.tuning);
  replace_file(c.hardware.gemm_tuning, text);
  const std::string hash = setup::use_gemm_tuning(c, *world, *device);
  EXPECT_EQ(hash, to_string(checksum_of(text)));
  const Result tuned = train(c, DType::bf16, 3, on_machine);
  EXPECT_NEAR(tuned.losses.back(), plain.losses.back(), 2e-3 * plain.losses.back());
  expect_same_bits(train(c, DType::bf16, 3, kOnGpu), plain);  // a new device has its own library state
  ops::use_gemm_tuning(*device, {});

  measured.tuning.made_with = "cuBLASLt 1.0.0";
  replace_file(c.hardware.gemm_tuning, to_json(measured.tuning));
  std::string said;
  const log::Sink before = log::set_sink([&](log::Level level, const std::string& line) {
    if (level == log::Level::warning) said += line;
  });
  EXPECT_EQ(setup::use_gemm_tuning(c, *world, *device), "");
  log::set_sink(before);
  EXPECT_NE(said.find("is ignored: the tuning table was measured on"), std::string::npos) << said;
  expect_same_bits(train(c, DType::bf16, 3, on_machine), plain);
}

TEST_F(OnGpu, ProductsAreMeasuredAsARankOfTheGridHasThem) {
  config::Config c = config_of(config::Arch::gpt2);
  c.data.vocab_size = kTinyVocab;
  c.model.d_ff = 48;
  c.model.vocab_multiple = 48;
  c.parallel.strategy = config::StrategyName::axonn_4d;
  c.parallel.grid = {3, 2, 1};
  c.parallel.data = 2;
  const setup::Machine machine = machine_of_gpu();
  const ops::GemmTuning tuning = bench::tune_products(c, machine, 2, 1).tuning;
  // 22 rows: two sequences of 11. Columns of the residual stream: 24 / 2; of the MLP: 48 / 3; of q, k, v: 3 · 24 / 3.
  for (const char* product : {"22x24x12 nn ", "22x12x8 nn ", "22x16x12 nn ", "22x12x16 nn ", "12x16x22 tn "})
    EXPECT_TRUE(std::ranges::any_of(tuning.products, [&](const auto& named) {
      return named.first.starts_with(product);
    })) << product;
}

/// Calls `body` on two ranks, which are threads that compute on the same GPU.
void on_two_ranks(const std::function<void(comm::World&)>& body) { comm::run_on_threads(2, {.timeout_s = 60}, body); }

TEST_P(EveryModel, OperandsTransposedFirstArePlannedAndChangeNoMoreThanTheOrderOfSums) {
  config::Config c = config_of(GetParam());
  c.data.vocab_size = kTinyVocab;
  const TempFolder folder;
  c.hardware.gemm_tuning = folder / "tuning.json";
  const auto world = comm::solo_world();
  const setup::Machine machine = machine_of_gpu();
  const HowToRun on_machine{.device = [&](int) { return setup::make_device(machine); }};
  const Result plain = train(c, DType::bf16, 3, kOnGpu);
  const int64_t without = setup::plan_run(c, kTinyVocab, machine, true).memory.at("activations");
  ops::GemmTuning tuning = bench::tune_products(c, machine, 2, 1).tuning;
  for (const ops::GemmForm form : {ops::GemmForm::left_first, ops::GemmForm::right_first}) {
    for (auto& [name, product] : tuning.products) product.form = form;
    replace_file(c.hardware.gemm_tuning, to_json(tuning));
    setup::use_gemm_tuning(c, *world, *setup::make_dry_device(machine));
    const setup::RunPlan plan = setup::plan_run(c, kTinyVocab, machine, true);
    EXPECT_GT(plan.memory.at("activations"), without);
    {
      Tiny run(nullptr, c, DType::bf16, setup::make_device(machine));
      for (int step = 1; step <= 2; ++step) run.step(step);
      EXPECT_EQ(run.trainer.memory().at("activations"), plan.memory.at("activations"));
    }
    const Result tuned = train(c, DType::bf16, 3, on_machine);
    EXPECT_NEAR(tuned.losses.back(), plain.losses.back(), 2e-3 * plain.losses.back());
    expect_same_bits(train(c, DType::bf16, 3, on_machine), tuned);
  }
}

TEST_F(OnGpu, EveryRankTakesTheTableOfTheFirst) {
  config::Config c = config_of(config::Arch::gpt2);
  const TempFolder folder;
  const auto device = gpu();
  ops::GemmTuning tuning{device->gpu().name, ops::product_path(*device, DType::bf16), {}};
  tuning.products["a product"].form = ops::GemmForm::left_first;
  const std::string text = to_json(tuning);
  replace_file(folder / "first.json", text);
  replace_file(folder / "other.json", "no table");
  for (const char* others : {"first.json", "other.json", "missing.json"})
    on_two_ranks([&](comm::World& world) {
      config::Config mine = c;
      mine.hardware.gemm_tuning = folder / (world.first() ? "first.json" : others);
      EXPECT_EQ(setup::use_gemm_tuning(mine, world, *gpu()), to_string(checksum_of(text))) << others;
    });
  for (const char* first : {"other.json", "missing.json"}) {  // a clear error, on all ranks
    std::atomic<int> refused = 0;
    on_two_ranks([&](comm::World& world) {
      config::Config mine = c;
      mine.hardware.gemm_tuning = folder / (world.first() ? first : "first.json");
      try {
        setup::use_gemm_tuning(mine, world, *gpu());
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::config);
        EXPECT_NE(std::string(error.what()).find("hardware.gemm_tuning"), std::string::npos) << error.what();
        ++refused;
      }
    });
    EXPECT_EQ(refused, 2) << first;
  }
}

/// A model with experts; `shared`: with a shared one, and a layer without experts.
config::Config experts(bool shared) {
  config::Config c = tiny_experts(shared);
  c.model.n_layer = 2;
  c.optim.lr = 1e-3;
  c.parallel.data = 1;
  return c;
}

TEST_F(OnGpu, ExpertsFollowTheCpu) {
  for (const bool shared : {false, true}) {
    SCOPED_TRACE(shared ? "with a shared expert" : "experts only");
    config::Config c = experts(shared);
    const Result cpu = train(c, DType::f32, 3), cuda = train(c, DType::f32, 3, kOnGpu);
    EXPECT_TRUE(cuda.start == cpu.start);
    EXPECT_EQ(cuda.choices, cpu.choices);
    expect_same_gradients(cuda.gradients, cpu.gradients, 1e-5);
    EXPECT_NEAR(cuda.losses.back(), cpu.losses.back(), 1e-6 * cpu.losses.back());
    c.debug.balanced_routing = true;  // with the choices of double precision
    const Result exact = train(c, DType::f64, 1), rounded = train(c, DType::bf16, 1),
                 half = train(c, DType::bf16, 1, kOnGpu);
    for (const auto& [name, values] : exact.gradients)
      EXPECT_LE(relative_error(half.gradients.at(name), values),
                1.5 * relative_error(rounded.gradients.at(name), values))
          << name;
  }
}

TEST_F(OnGpu, ExpertsHaveTheSameBitsInEveryOrderAndWithRecomputation) {
  config::Config c = experts(true);
  const Result first = train(c, DType::bf16, 2, kOnGpu);
  ops::testing::for_each_order([&] { expect_same_bits(train(c, DType::bf16, 2, kOnGpu), first); });
  for (const auto mode : {config::Recompute::selective, config::Recompute::full}) {
    c.train.recompute = mode;
    expect_same_bits(train(c, DType::bf16, 2, kOnGpu), first);
  }
}

TEST_F(OnGpu, ExpertsTakeTheMemoryOfTheirPlanAndGenerateAsOnTheCpu) {
  const config::Config c = experts(true);
  Tiny cpu(c, DType::f32, 2), cuda(nullptr, c, DType::f32, gpu());
  const setup::Machine machine{.threads = 2, .compute = DType::f32, .gpu = device::cuda::devices().front()};
  cuda.step(1);
  EXPECT_EQ(cuda.device.memory_total(), setup::plan_run(c, kTinyVocab, machine, true).total);
  cpu.step(1);
  EXPECT_EQ(texts_of(cuda, 2), texts_of(cpu, 2));
}

using CudaTraining = OnGpu;
TEST_F(CudaTraining, SkipsAStepWhoseGradientIsNotFinite) {
  const config::Config c = config_of(config::Arch::gpt2);
  Tiny run(nullptr, c, DType::f32, gpu());
  const params::Param& param = run.trainer.store().params().at(3);
  const params::Group& group = run.trainer.store().groups()[static_cast<size_t>(param.group)];
  HostCopy master(run.device, group.master);
  master.tensor().as<float>()[param.runs.front().local] = std::numeric_limits<float>::quiet_NaN();
  master.put();
  const std::vector<std::byte> before = run.state();
  const auto outcome = run.step(1);
  EXPECT_TRUE(outcome.skipped);
  EXPECT_FALSE(outcome.norm.bad_tensor.empty());
  EXPECT_TRUE(run.state() == before);
}

}  // namespace
}  // namespace trainer::tests
