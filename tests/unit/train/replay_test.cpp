#include "train/replay.h"

#include "rigs/layout_cases.h"
#include "rigs/layout_checks.h"
#include "rigs/offload.h"

namespace trainer::tests {
namespace {

train::StepWork work_of(Tiny& run, int64_t n) {
  return {.step = n,
          .first_sample = (n - 1) * run.trainer.config().train.global_batch,
          .adam_step = n,
          .micro_batches = run.trainer.accumulation(),
          .lr = 1e-3};
}

/// Returns `batches`, but changes the tokens of those drawn by number, counted from 1.
train::BatchSource wrong_in(train::BatchSource batches, std::vector<int> numbers) {
  return [batches = std::move(batches), numbers = std::move(numbers), n = std::make_shared<int>(0)](
             int64_t sample, int64_t sequences, data::TokenBatch& out) {
    batches(sample, sequences, out);
    if (std::ranges::count(numbers, ++*n) > 0) out.ids[3] = (out.ids[3] + 1) % kTinyVocab;
  };
}

/// Returns what the replay before step 2 finds, with batches that are wrong on the ranks that `wrong` names.
std::string found_in(const config::Config& c, const std::map<int, std::vector<int>>& wrong) {
  std::string found;
  comm::run_on_threads(ranks_of(c), {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, c, DType::f32, 1);
    train::Replay replay(run.trainer, "avx2");
    run.step(1);
    const auto numbers = wrong.find(world.rank());
    const std::string text =
        replay.check(work_of(run, 2), numbers == wrong.end() ? run.batches : wrong_in(run.batches, numbers->second));
    if (world.first()) found = text;
    EXPECT_EQ(replay.check(work_of(run, 3), run.batches), "") << "after the fault";
  });
  return found;
}

void expect_parts(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\nin " << text;
}

config::Config replicas(int64_t data, int64_t tensor = 1) {
  config::Config c = tiny_config();
  if (tensor > 1) c = configure(MegatronLayout{tensor, data, true});
  c.parallel.data = data;
  c.train.global_batch = 2 * c.train.micro_batch * data;
  c.debug.replay_every = 1;
  return c;
}

struct Replays : testing::TestWithParam<LayoutCase> {};

// Also memory and the counted bytes of steps; replays send nothing over the replicas but control messages.
TEST_P(Replays, AgreeAndChangeNoBit) {
  config::Config c = GetParam().config;
  for (const int64_t accumulation : {1, 2}) {
    c.train.global_batch = accumulation * c.train.micro_batch * std::max<int64_t>(1, c.parallel.data);
    const auto results = [&](bool replays) {
      std::vector<std::byte> state;
      BytesByCategory memory;
      std::mutex mutex;
      comm::run_on_threads(ranks_of(c), {.timeout_s = 60}, [&](comm::World& world) {
        Tiny run(&world, c, DType::f32, 1);
        std::optional<train::Replay> replay;
        if (replays) replay.emplace(run.trainer, "avx2");
        std::vector<double> losses;
        for (int64_t n = 1; n <= 3; ++n) {
          run.trainer.meter().reset();
          EXPECT_EQ(replay ? replay->check(work_of(run, n), run.batches) : "", "");
          const mesh::MeshShape& shape = run.trainer.mesh().shape();
          for (const auto& [key, count] : run.trainer.meter().comm())
            EXPECT_TRUE(key.axes == mesh::kControlAxes || (key.axes & shape.set("data")) == 0 ||
                        run.trainer.replicas() == 1 || count.calls == 0)
                << shape.name_of(key.axes) << " " << name_of(key.op);
          run.trainer.meter().reset();
          losses.push_back(run.step(n).loss);
          EXPECT_EQ(run.trainer.comm_bytes(run.trainer.meter().comm()), run.trainer.comm_bytes_per_step());
        }
        const std::vector<std::byte> own = run.state();
        const std::lock_guard lock(mutex);
        if (!world.first()) return;
        state = own;
        memory = run.trainer.memory();
        const auto* first = reinterpret_cast<const std::byte*>(losses.data());
        state.insert(state.end(), first, first + losses.size() * sizeof(double));
      });
      return std::pair(state, memory);
    };
    const auto [with, memory] = results(true);
    const auto [without, planned] = results(false);
    EXPECT_TRUE(with == without) << "accumulation " << accumulation;
    EXPECT_EQ(memory, planned);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Replays,
                         testing::ValuesIn(layouts_named({"Tensor2Data2SpEach1Gpt2", "Tensor1Data2SpEach2Gpt2",
                                                          "Q2Depth1Data2Gpt2PaperRingTile1x1", "X1Y2Z2Data2Llama",
                                                          "Shards3Data2Gpt2", "Shards4Context4Data1Gpt2",
                                                          "Q2Depth1Data1LlamaAutoRingTile1x1ZLossSoftcap"})),
                         name_of_case);

config::Config staged() {
  config::Config c = replicas(2, 2);
  c.parallel.stages = 2;
  c.parallel.stage_layers = {1, 1};
  return c;
}
config::Config zb_h1() {
  config::Config c = staged();
  c.parallel.pipeline_schedule = sharding::PipelineSchedule::zb_h1;
  return c;
}
INSTANTIATE_TEST_SUITE_P(Stages, Replays,
                         testing::Values(LayoutCase{"Tensor2Data2Stages2", staged()},
                                         LayoutCase{"Tensor2Data2Stages2ZbH1", zb_h1()}),
                         name_of_case);

// For some minutes: ctest -C slow -L slow.
struct ManyReplays : testing::TestWithParam<LayoutCase> {};

TEST_P(ManyReplays, NeverFindAFaultThatIsNotThere) {
  const config::Config& c = GetParam().config;
  for (const DType type : {DType::f32, DType::bf16})
    comm::run_on_threads(ranks_of(c), {.timeout_s = 60}, [&](comm::World& world) {
      Tiny run(&world, c, type, 1);
      train::Replay replay(run.trainer, "avx2");
      for (int64_t n = 1; n <= 50; ++n) {
        ASSERT_EQ(replay.check(work_of(run, n), run.batches), "") << "step " << n;
        run.step(n);
      }
    });
}

INSTANTIATE_TEST_SUITE_P(DISABLED_Replays, ManyReplays, testing::ValuesIn(layout_cases()), name_of_case);

TEST(Replay, NamesTheMinorityOfThreeReplicas) {
  // The third rank's second pass is wrong: for the batch of replica 0.
  expect_parts(
      found_in(replicas(3), {{2, {2}}}),
      {"replica 2 computed a different loss for the micro-batch of replica 0", "3 of 3", "suspect rank 2 (host "});
  // Its first pass is wrong, which the second rank finds.
  expect_parts(found_in(replicas(3), {{2, {1}}}), {"replica 2 computed", "of replica 2", "suspect rank 2 (host "});
  // All of its passes are wrong.
  expect_parts(found_in(replicas(3), {{1, {1, 2, 3}}}), {"replica 1 computed", "2 of 3", "suspect rank 1 (host "});
}

TEST(Replay, NamesTheMinorityByBothTermsOfTheLoss) {
  config::Config c = replicas(3);
  c.train.z_loss = 0.01;
  expect_parts(found_in(c, {{1, {1, 2, 3}}}),
               {"replica 1 computed a different loss", "2 of 3", "suspect rank 1 (host "});
}

TEST(Replay, OfTwoReplicasNamesTheOneThatDisagreesWithItself) {
  expect_parts(found_in(replicas(2), {{1, {1}}}), {"replica 1 computed", "suspect rank 1 (host "});
  expect_parts(found_in(replicas(2), {{1, {2}}}), {"replica 1 computed", "suspect rank 1 (host "});
  expect_parts(found_in(replicas(2), {{0, {1, 2, 3}}}), {"each repeats its result", "suspect ranks 0 or 1 (host "});
}

TEST(Replay, OfOneReplicaFindsTransientFaults) {
  expect_parts(found_in(replicas(1, 2), {{0, {2}}, {1, {2}}}), {"replica 0 computed a different loss", "suspect rank"});
}

// A fault in a weight's gradient is on one rank only, whatever its replica's other ranks compute.
TEST(Replay, NamesTheRankAndTheParameterOfAGradient) {
  config::Config c = replicas(3, 2);
  c.debug.replay_every = 2;
  c.debug.inject = {"gradient:3:blocks.0.mlp.up.weight:60:3"};
  const std::string found = found_in(c, {});
  expect_parts(found, {"replica 1 computed different gradients of blocks.0.mlp.up.weight for the micro-batch of ",
                       "2 of 3 replicas agree", "suspect rank 3 (host "});
}

TEST(Replay, ComparesOnlyEqualHardware) {
  comm::run_on_threads(4, {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, replicas(2, 2), DType::f32, 1);
    const train::Replay replay(run.trainer, world.rank() == 3 ? "avx2" : "amx");
    EXPECT_EQ(replay.obstacle(), "rank 3 computes with avx2, but rank 1 with amx");
    const train::Replay equal(run.trainer, world.rank() % 2 == 1 ? "avx2" : "amx");
    EXPECT_EQ(equal.obstacle(), "");  // the ranks of a replica may differ
  });
}

TEST(Replay, LeavesOffloadedUpdatesAsTheyAre) {
  config::Config c = replicas(2);
  c.offload.optimizer = config::OffloadOptimizer::interleaved;
  c.offload.gpu_fraction = "1/2";
  const auto state = [&](bool replays) {
    std::vector<std::byte> bytes;
    comm::run_on_threads(2, {.timeout_s = 60}, [&](comm::World& world) {
      Tiny run(&world, c, DType::f32, 1);
      train::Replay replay(run.trainer, "");
      for (int64_t n = 1; n <= 3; ++n) {
        EXPECT_EQ(replays ? replay.check(work_of(run, n), run.batches) : "", "");
        run.step(n);
      }
      if (world.first()) bytes = run.state();
    });
    return bytes;
  };
  EXPECT_TRUE(state(true) == state(false));
}

}  // namespace
}  // namespace trainer::tests
