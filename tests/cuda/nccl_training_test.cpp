// Training runs in which each rank has its own device and ranks communicate through NCCL.
#include "comm/nccl/links.h"
#include "comm/nccl/nccl_world.h"
#include "device/cuda/cuda_device.h"
#include "nccl.h"
#include "rigs/layouts.h"
#include "setup/run_plan.h"

namespace trainer::tests {
namespace {

struct ByNccl : testing::Test {
  explicit ByNccl(config::Config model) : c(std::move(model)) {
    emulator::set_devices(4);
    by_nccl.carrier = [](comm::World& world, device::Device& device) { return comm::nccl::make_world(world, device); };
    c.optim.lr = 1e-3;
    c.model.n_head = 2;
    c.model.n_kv_head = 2;
    c.model.seq_len = 12;
  }
  /// Trains two steps of a layout on N ranks, and compares them with those of one rank. Only balanced experts have
  /// predicted bytes.
  Result expect_to_follow(const config::Config& many, int64_t ranks, const Result& one) {
    const Result result = train(many, DType::f32, 2, by_nccl);
    EXPECT_EQ(emulator::live_nccl_communicators(), 0);
    for (int rank = 0; rank < ranks; ++rank) EXPECT_FALSE(emulator::take_nccl_log(rank).empty());
    EXPECT_TRUE(result.start == one.start);
    expect_same_gradients(result.gradients, one.gradients, 1e-5);
    for (size_t n = 0; n < one.losses.size(); ++n) EXPECT_NEAR(result.losses[n], one.losses[n], 1e-6 * one.losses[n]);
    EXPECT_EQ(result.choices, one.choices);
    if (many.model.n_expert == 0 || many.debug.balanced_routing) expect_predicted_bytes(result, 2);
    return result;
  }
  const HowToRun plain{.device = [](int rank) { return device::cuda::make_device(rank, 1); }};
  HowToRun by_nccl = plain;
  config::Config c;
};
struct TrainingByNccl : ByNccl, testing::WithParamInterface<config::Arch> {
  TrainingByNccl() : ByNccl(tiny_config(GetParam())) {}
};
struct ExpertsByNccl : ByNccl {
  ExpertsByNccl() : ByNccl(tiny_experts(/*shared=*/true)) {
    c.model.n_layer = 2;
    c.model.seq_len = 16;  // 32 choices on each of two ranks: as many rows as a round can have at least
  }
};
INSTANTIATE_TEST_SUITE_P(Models, TrainingByNccl, testing::Values(config::Arch::gpt2, config::Arch::llama),
                         [](const auto& param) { return param.param == config::Arch::gpt2 ? "gpt2" : "llama"; });

TEST_P(TrainingByNccl, FollowsOneRankInEveryLayout) {
  const Result one = train(c, DType::f32, 2, plain);
  for (const auto& [tensor, data, zero, sequence] : {std::tuple{2, 1, 0, false},
                                                     {2, 1, 0, true},
                                                     {1, 2, 0, false},
                                                     {1, 2, 1, false},
                                                     {2, 2, 0, true},
                                                     {2, 2, 1, true}}) {
    if (GetParam() == config::Arch::llama && tensor * data < 4) continue;
    SCOPED_TRACE(format("tensor {} data {} zero {} sequence {}", tensor, data, zero, sequence));
    config::Config many = c;
    many.parallel.tensor = tensor;
    many.parallel.data = data;
    many.parallel.zero_stage = zero;
    many.parallel.sequence_parallel = sequence;
    const Result result = expect_to_follow(many, tensor * data, one);
    if (data * tensor == 4 && zero == 1) expect_same_bits(train(many, DType::f32, 2, by_nccl), result);  // repeatable
  }
}

TEST_P(TrainingByNccl, FollowsOneRankOnASquareOfRanks) {
  const Result one = train(c, DType::f32, 2, plain);
  using config::Panels, config::Stationary;
  for (const auto& [panels, stationary] : {std::pair{Panels::ring, Stationary::automatic},
                                           {Panels::ring, Stationary::paper},
                                           {Panels::gather, Stationary::automatic}}) {
    SCOPED_TRACE(format("{}, {}", static_cast<int>(panels), static_cast<int>(stationary)));
    config::Config many = c;
    many.parallel.strategy = config::StrategyName::optimus_2d;
    many.parallel.mesh = {2, 2};
    many.parallel.panels = panels;
    many.parallel.stationary = stationary;
    many.parallel.data = 1;
    const Result result = expect_to_follow(many, 4, one);
    many.debug.overlap = false;
    expect_same_bits(train(many, DType::f32, 2, by_nccl), result);
  }
}

// Messages between stages change no bit, whatever carries them.
TEST_P(TrainingByNccl, FollowsOneRankInStages) {
  c.model.tie_embeddings = false;
  const Result one = train(c, DType::f32, 2, plain);
  config::Config many = c;
  many.parallel.data = 1;
  many.parallel.tensor = GetParam() == config::Arch::gpt2 ? 1 : 2;
  const Result of_one_stage = train(many, DType::f32, 2, by_nccl);
  many.parallel.stages = 2;
  using sharding::PipelineSchedule;
  for (const auto& [schedule, layers] :
       {std::pair{PipelineSchedule::one_forward_one_backward, std::vector<int64_t>{1, 1}},
        {PipelineSchedule::one_forward_one_backward, {0, 1, 1, 0}},
        {PipelineSchedule::zb_h1, {1, 1}}}) {
    many.parallel.pipeline_schedule = schedule;
    many.parallel.chunks = std::ssize(layers) / 2;
    many.parallel.stage_layers = layers;
    SCOPED_TRACE(config::layout_text(many));
    const Result result = expect_to_follow(many, 2 * many.parallel.tensor, one);
    expect_same_bits(result, of_one_stage);
    if (many.parallel.tensor == 1) expect_same_bits(train(many, DType::f32, 2, plain), result);
  }
}

TEST_F(ExpertsByNccl, AreDividedAndFollowOneRank) {
  for (const bool balanced : {false, true}) {
    SCOPED_TRACE(balanced ? "balanced" : "in several rounds");
    c.debug.balanced_routing = balanced;
    config::Config many = c;
    many.parallel.strategy = config::StrategyName::fsdp;
    many.parallel.shards = many.parallel.experts = 2;
    many.parallel.expert_buffer = 1;
    const Result result = expect_to_follow(many, 2, train(c, DType::f32, 2, plain));
    EXPECT_EQ(result.rounds > 1, !balanced) << result.rounds;
  }
}

TEST_P(TrainingByNccl, IsPlannedWithAsManyCommunicatorsAsItMakes) {
  config::Config grid = c, square = c, replicas = c, stages = c;
  grid.parallel.strategy = config::StrategyName::axonn_4d;
  grid.parallel.grid = {2, 1, 2};
  square.parallel.strategy = config::StrategyName::optimus_2d;
  square.parallel.mesh = {2, 2};
  replicas.parallel.tensor = 2;
  replicas.parallel.data = 2;
  stages.parallel.stages = stages.parallel.tensor = 2;
  stages.parallel.stage_layers = {1, 1};
  for (config::Config many : {grid, square, replicas, stages})
    for (const int lanes : {0, 3}) {
      many.parallel.lanes = lanes;
      many.parallel.data = std::max<int64_t>(many.parallel.data, 1);
      const auto ranks = static_cast<int>(config::ranks_of_replica(many) * many.parallel.data);
      SCOPED_TRACE(format("{}, {} ranks, {} lanes", name_of(many.parallel.strategy), ranks, lanes));
      std::atomic<int64_t> planned = 0;
      comm::run_on_threads(ranks, {.timeout_s = 60, .lanes = lanes}, [&](comm::World& world) {
        setup::Machine machine{.threads = 1, .compute = DType::f32, .ranks = ranks, .rank = world.rank()};
        machine.gpu = device::cuda::devices()[static_cast<size_t>(world.rank())];
        EXPECT_FALSE(setup::plan_run(many, kTinyVocab, machine, true).memory.contains("nccl"));
        const int64_t without = setup::plan_run(many, kTinyVocab, machine, true).total;
        machine.nccl = true;
        const setup::RunPlan plan = setup::plan_run(many, kTinyVocab, machine, true);
        EXPECT_EQ(plan.total, without + plan.memory.at("nccl"));
        EXPECT_NE(to_text(plan, many, machine).find("\n  nccl "), std::string::npos);
        using namespace comm::nccl;  // a rank has fewer links than take the memory of another communicator
        const int64_t bytes = plan.memory.at("nccl");
        planned += bytes / kBytesOfCommunicator + bytes % kBytesOfCommunicator / bytes_of_communicator(kChannelsOfLink);
        Tiny run(&world, many, DType::f32, plain.device(world.rank()), by_nccl.carrier);
        world.control().barrier();
        if (world.first()) {  // each rank also has the communicator of all ranks
          EXPECT_EQ(emulator::live_nccl_communicators(), planned + ranks);
        }
        world.control().barrier();
      });
    }
}

}  // namespace
}  // namespace trainer::tests
