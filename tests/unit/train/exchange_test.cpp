// Layers whose experts are on different ranks, which exchange token rows in one or several rounds, compared with one
// rank.
#include "rigs/layout_cases.h"
#include "rigs/layout_checks.h"

namespace trainer::tests {
namespace {

using config::Config;
using config::Recompute;

/// With a buffer of 1, a layer whose loads differ at all takes several rounds.
Config divided(Config c, int64_t experts, double buffer) {
  add_experts(c);
  c.model.seq_len = 48;
  c.parallel.experts = experts;
  c.parallel.expert_buffer = buffer;
  return c;
}

std::vector<LayoutCase> layouts(double buffer) {
  const config::Arch llama = config::Arch::llama;
  const auto megatron = [&](bool sequences) { return configure(MegatronLayout{2, 1, sequences, llama}); };
  std::vector<LayoutCase> all = {{"Shards4Experts2", divided(sharded(4, 1, llama).config, 2, buffer)},
                                 {"Shards4Experts4", divided(sharded(4, 1, llama).config, 4, buffer)},
                                 {"Shards4Context2Experts2", divided(sharded(4, 1, llama, 2).config, 2, buffer)},
                                 {"Tensor2Experts2", divided(megatron(false), 2, buffer)},
                                 {"Tensor2Experts2Sp", divided(megatron(true), 2, buffer)}};
  for (LayoutCase& one : all)
    if (one.name.ends_with("Sp") || one.name.find("Context") != std::string::npos) {
      one.config.model.d_shared = 36;
      one.config.model.moe_every = 2;
      one.config.train.balance = config::Balance::sequence;
      if (one.config.parallel.context > 1) one.config.model.seq_len = 96;
    }
  return all;
}

int64_t exchanged(const Result& result) {
  int64_t bytes = 0;
  for (const auto& [axis, operations] : result.measured)
    if (operations.contains("all_to_all")) bytes += operations.at("all_to_all");
  return bytes;
}

TEST(DividedExperts, FollowOneRankAndSendTheExpectedBytes) {
  const std::vector<LayoutCase> narrow = layouts(1), wide = layouts(4);
  for (size_t i = 0; i < narrow.size(); ++i) {
    SCOPED_TRACE(narrow[i].name);
    const Result one = train(on_one_rank(narrow[i].config), DType::f64, 3);
    std::vector<int64_t> bytes;
    for (const Config& c : {narrow[i].config, wide[i].config}) {
      SCOPED_TRACE(c.parallel.expert_buffer);
      expect_same_run(train(c, DType::f64, 3), one);
      const Result once = train(c, DType::f64, 1);
      expect_predicted_bytes(once, 1);
      bytes.push_back(exchanged(once));
      EXPECT_EQ(once.rounds > 1, c.parallel.expert_buffer == 1) << once.rounds;
    }
    EXPECT_GT(bytes[0], bytes[1]) << "what later rounds moved forward is moved again in the backward pass";
  }
}

TEST(DividedExperts, SendThePlannedBytesWithBalancedRouting) {
  for (LayoutCase& one : layouts(1)) {
    SCOPED_TRACE(one.name);
    one.config.debug.balanced_routing = true;
    for (const Recompute recompute : {Recompute::none, Recompute::full}) {
      one.config.train.recompute = recompute;
      expect_predicted_bytes(train(one.config, DType::f64, 2), 2);
    }
  }
}

TEST(DividedExperts, RecomputationAndOverlapChangeNoBit) {
  for (const LayoutCase& one : layouts(1)) {
    SCOPED_TRACE(one.name);
    const Result usual = train(one.config, DType::f32, 2);
    for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
      Config c = one.config;
      c.train.recompute = recompute;
      expect_same_bits(train(c, DType::f32, 2), usual);
      c.debug.overlap = false;
      expect_same_bits(train(c, DType::f32, 2), usual);
    }
  }
}

TEST(DividedExperts, WorkWithReplicasSplitStatesStagesAndKeptWeights) {
  const auto expect = [](const char* what, int64_t data, const std::function<void(Config&)>& change) {
    SCOPED_TRACE(what);
    Config c = divided(sharded(4, data, config::Arch::llama).config, 2, 1);
    change(c);
    Config one = on_one_rank(c);
    one.train.micro_batch = c.train.micro_batch * data;  // loads are balanced over the sequences of all replicas
    expect_same_run(train(c, DType::f64, 2), train(one, DType::f64, 2));
  };
  expect("replicas", 2, [](Config& c) { c.parallel.zero_stage = 1; });
  expect("kept weights", 1, [](Config& c) { c.parallel.cache_layers = 1; });
  expect("stages", 1, [](Config& c) {
    c.parallel.stages = 2;
    c.parallel.stage_layers = {1, 1};
  });
  expect("zb-h1", 1, [](Config& c) {
    c.parallel.stages = 2;
    c.parallel.stage_layers = {1, 1};
    c.parallel.pipeline_schedule = sharding::PipelineSchedule::zb_h1;
  });
}

TEST(DividedExperts, GenerateAsOneRankDoes) {
  for (const LayoutCase& one : layouts(1)) {
    SCOPED_TRACE(one.name);
    expect_text_continued_as_on_one_rank(one.config);
  }
}

}  // namespace
}  // namespace trainer::tests
