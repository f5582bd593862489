// Layers whose experts are on different ranks, which exchange token rows in one or several rounds, compared with one
// rank.
#include <array>
#include <cstdio>
#include <set>

#include "parallel/exchange.h"
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

/// The experts that each row chooses in a step: [layers, N, k].
using Choose = std::function<std::vector<int32_t>(int64_t step)>;

/// Returns choices that are the same in all layers: those of a row.
Choose each_row(const Config& c, const std::function<std::array<int32_t, 2>(int64_t step, int64_t row)>& of) {
  return [rows = c.train.micro_batch * c.model.seq_len, layers = moe_layers(c.model), of](int64_t step) {
    std::vector<int32_t> all;
    for (int64_t i = 0; i < layers * rows; ++i)
      for (const int32_t expert : of(step, i % rows)) all.push_back(expert);
    return all;
  };
}

/// Trains as train() does, with injected choices. Returns losses, norms, the first step's gradients, and the most
/// rounds of any step.
Result train_choosing(const Config& c, DType compute, int64_t steps, const Choose& choose) {
  Result result;
  std::mutex mutex;
  comm::run_on_threads(ranks_of(c), {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, c, compute, 1);
    const auto memory = run.trainer.memory();
    for (int64_t n = 1; n <= steps; ++n) {
      std::vector<int32_t> choices = choose(n);
      run.trainer.routing()->choices = {reinterpret_cast<std::byte*>(choices.data()),
                                        {std::ssize(choices) / c.model.experts_per_token, c.model.experts_per_token},
                                        DType::i32};
      const auto outcome = run.step(n);
      const int64_t rounds = run.trainer.expert_statistics().rounds;
      const std::lock_guard lock(mutex);
      result.rounds = std::max(result.rounds, rounds);
      if (world.first()) {
        result.losses.push_back(outcome.loss);
        result.norms.push_back(outcome.norm.norm);
      }
      if (n > 1) continue;
      for (const params::Param& param : run.trainer.store().params()) {
        if (!param.primary) continue;
        const params::Group& group = run.trainer.store().groups()[static_cast<size_t>(param.group)];
        collect(result.gradients, {param.name, param.shape, group.grad.range(group.owned.begin, group.owned.count),
                                   mesh::clip_runs(param.runs, group.owned.begin, group.owned.count), &run.device});
      }
    }
    EXPECT_EQ(run.trainer.memory(), memory);
  });
  return result;
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

TEST(DividedExperts, HaveTheLossAndNormOfAnyBufferAndNumberOfRanks) {
  const Config whole = divided(sharded(4, 1, config::Arch::llama).config, 1, 1.5);
  const Result one = train(on_one_rank(whole), DType::f64, 1);
  for (const auto& [experts, buffer] :
       std::vector<std::pair<int64_t, double>>{{1, 1.5}, {2, 1}, {2, 1.5}, {2, 2}, {4, 1}, {4, 1.5}, {4, 4}}) {
    SCOPED_TRACE(format("{} ranks, buffer {}", experts, buffer));
    Config c = whole;
    c.parallel.experts = experts;
    c.parallel.expert_buffer = buffer;
    const Result many = train(c, DType::f64, 1);
    EXPECT_NEAR(many.losses[0], one.losses[0], 1e-12 * one.losses[0]);
    EXPECT_NEAR(many.norms[0], one.norms[0], 1e-12 * one.norms[0]);
    if (buffer != 1.5) {
      EXPECT_EQ(many.rounds > 1, buffer == 1);
    }
  }
}

/// Sets the weights of the routers so that each row chooses one of the experts 0 and 1, and one of 2 and 3: their
/// logits are v, -v, w and -w, those of the other experts 0.
void choose_the_first_half(Tiny& run) {
  for (const checkpoint::TensorSlice& slice : checkpoint::slices_to_fill(run.trainer.store(), false)) {
    if (!slice.name.ends_with("router.weight")) continue;
    for (const mesh::Run& elements : slice.runs)
      for (int64_t i = 0; i < elements.length; ++i) {
        const int64_t row = (elements.global + i) / 8, expert = (elements.global + i) % 8, pair = expert / 2;
        const auto number = philox_at(philox_key(4, "router"), static_cast<uint64_t>(2 * row + pair)) % 1000;
        const double weight = pair < 2 ? static_cast<double>(number) / 1000 - 0.5 : 0;
        slice.local.as<double>()[elements.local + i * elements.stride] = expert % 2 == 0 ? weight : -weight;
      }
  }
  run.trainer.store().refresh_compute();
}

TEST(DividedExperts, LeaveRanksWithoutRowsWhoseExpertsNoRouterChooses) {
  const HowToRun how{.prepare = choose_the_first_half};
  for (const LayoutCase& layout : layouts(1.5)) {
    SCOPED_TRACE(layout.name);
    const Result many = train(layout.config, DType::f64, 1, how),
                 one = train(on_one_rank(layout.config), DType::f64, 1, how);
    expect_same_run(many, one);
    EXPECT_EQ(many.rounds, 2);
    for (const std::vector<int64_t>& counts : many.choices) {
      EXPECT_EQ(counts[0] + counts[1], counts[2] + counts[3]);
      EXPECT_GT(std::ranges::min(std::span(counts).first(4)), 0);
      EXPECT_EQ(std::ranges::max(std::span(counts).last(4)), 0);
    }
    for (const auto& [name, values] : many.gradients) {
      if (name.find("mlp.experts.") == std::string::npos) continue;
      const std::span<const double> unused = std::span(values).last(values.size() / 2);
      EXPECT_EQ(std::ranges::count(unused, 0.0), std::ssize(unused)) << name;
    }
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
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
      for (const bool overlap : {true, false}) {
        if (overlap && recompute == Recompute::none) continue;
        Config c = one.config;
        c.train.recompute = recompute;
        c.debug.overlap = overlap;
        expect_same_bits(train(c, DType::f32, 2), usual);
      }
  }
  for (const LayoutCase& one : layouts(1.5)) {  // most returns take one round, and overlap
    SCOPED_TRACE(one.name);
    Config c = one.config;
    const Result usual = train(c, DType::f32, 2);
    c.debug.overlap = false;
    expect_same_bits(train(c, DType::f32, 2), usual);
  }
}

TEST(DividedExperts, WorkWithReplicasSplitStatesAndKeptWeights) {
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
}

// Several rounds per micro-step, too.
TEST(DividedExperts, HaveTheBitsOfOneStage) {
  Config c = divided(sharded(2, 1, config::Arch::llama).config, 2, 1);
  const Result one = train(c, DType::f32, 2);
  EXPECT_GT(one.rounds, 1);
  c.parallel.stages = 2;
  c.parallel.stage_layers = {1, 1};
  for (const sharding::PipelineSchedule schedule :
       {sharding::PipelineSchedule::one_forward_one_backward, sharding::PipelineSchedule::zb_h1}) {
    c.parallel.pipeline_schedule = schedule;
    const Result staged = train(c, DType::f32, 2);
    expect_same_bits(staged, one);
    EXPECT_EQ(staged.choices, one.choices);
  }
  // A rank recomputes a micro-batch after the forward passes of others.
  Config whole = c;
  whole.parallel.stages = 1;
  whole.parallel.stage_layers.clear();
  whole.parallel.pipeline_schedule = {};
  whole.model.d_shared = 36;
  whole.train.recompute = Recompute::full;
  Config chunks = whole;
  chunks.parallel.stages = chunks.parallel.chunks = 2;
  chunks.parallel.stage_layers = {0, 1, 1, 0};
  expect_same_bits(train(chunks, DType::f32, 2), train(whole, DType::f32, 2));
}

// In each step all tokens go to the experts of one rank: the first one, then the last one, then the first one again.
TEST(DividedExperts, ComputeAllTokensOnOneRank) {
  for (const double buffer : {1.0, 1.5})
    for (const LayoutCase& layout : layouts(buffer)) {
      SCOPED_TRACE(layout.name);
      const Config& c = layout.config;
      const int64_t experts = c.parallel.experts,
                    rows = c.train.micro_batch * c.model.seq_len / std::max(experts, c.parallel.shards);
      const Choose choose = each_row(c, [](int64_t step, int64_t) -> std::array<int32_t, 2> {
        if (step % 2 == 0) return {7, 6};
        return {0, 1};
      });
      const Result many = train_choosing(c, DType::f64, 3, choose),
                   one = train_choosing(on_one_rank(c), DType::f64, 3, choose);
      expect_same_gradients(many.gradients, one.gradients, 1e-12);
      for (size_t n = 0; n < 3; ++n) EXPECT_NEAR(many.losses[n], one.losses[n], 1e-10 * one.losses[n]) << n;
      const int64_t capacity = parallel::exchange_capacity(experts, 8, rows, 2, buffer);
      EXPECT_EQ(many.rounds, divide_up(experts * rows * 2, capacity));
    }
}

// With the same choices, the bounds of dense models hold (layouts_test.cpp).
TEST(DividedExperts, AreAsExactAsOneRankInEachType) {
  for (LayoutCase& layout : layouts(1.5)) {
    SCOPED_TRACE(layout.name);
    Config& c = layout.config;
    c.model.init_std = 0.02;
    const Choose choose = each_row(c, [](int64_t step, int64_t row) -> std::array<int32_t, 2> {
      const auto number = static_cast<int32_t>(philox_at(philox_key(3, "choices"), 1000 * step + row) % 56);
      return {number / 7, (number / 7 + 1 + number % 7) % 8};
    });
    const Config one = on_one_rank(c);
    const Result exact = train_choosing(one, DType::f64, 1, choose);
    expect_same_gradients(train_choosing(c, DType::f32, 1, choose).gradients, exact.gradients, 1e-5);
    const Result rough = train_choosing(one, DType::bf16, 3, choose), many = train_choosing(c, DType::bf16, 3, choose);
    for (const auto& [name, values] : exact.gradients)
      EXPECT_LE(relative_error(many.gradients.at(name), values), 1.5 * relative_error(rough.gradients.at(name), values))
          << name;
    EXPECT_NEAR(many.losses[2], rough.losses[2], 2e-3 * rough.losses[2]);
  }
}

/// The decisions of a step's routers: by layer, the logits [N, E] and choices [N, k] of all rows.
struct Decisions {
  std::map<int64_t, std::vector<float>> logits;
  std::map<int64_t, std::vector<int32_t>> choices;
};
Decisions decisions(const Config& c, DType compute) {
  Decisions all;
  std::mutex mutex;
  comm::run_on_threads(ranks_of(c), {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, c, compute, 1);
    const auto rows = static_cast<size_t>(c.train.micro_batch * c.model.seq_len);
    run.trainer.routing()->on_choice = [&](int64_t layer, int64_t first, const Tensor& logits, const Tensor& choices) {
      const auto put = [&](auto& to, const auto& values, const Tensor& of) {
        to.resize(rows * static_cast<size_t>(of.cols()));
        std::ranges::copy(values, to.begin() + first * of.cols());
      };
      const std::lock_guard lock(mutex);
      put(all.logits[layer], logits.span<float>(), logits);
      put(all.choices[layer], choices.span<int32_t>(), choices);
    };
    run.step(1);
  });
  return all;
}

// In bf16, rows near a tie may choose differently on different layouts.
TEST(DividedExperts, ChooseDifferentlyInFewRowsNearATie) {
  int found = 0;
  for (const char* name : {"Shards4Experts4", "Tensor2Experts2"}) {
    for (LayoutCase& layout : layouts(1.5)) {
      if (layout.name != name) continue;
      ++found;
      Config& c = layout.config;
      c.model.init_std = 0.02;
      c.train.global_batch = c.train.micro_batch;
      c.model.seq_len = 384;
      const Decisions one = decisions(on_one_rank(c), DType::bf16), many = decisions(c, DType::bf16);
      int64_t pairs = 0, flips = 0;
      for (const auto& [layer, choices] : one.choices)
        for (size_t row = 0; row < choices.size() / 2; ++row) {
          const auto chosen = [&](const Decisions& of) {
            const auto begin = of.choices.at(layer).begin() + static_cast<int64_t>(2 * row);
            return std::set<int32_t>(begin, begin + 2);
          };
          pairs += 2;
          const std::set<int32_t> here = chosen(one), there = chosen(many);
          for (const int32_t expert : here) {
            if (there.contains(expert)) continue;
            ++flips;
            const auto begin = one.logits.at(layer).begin() + static_cast<int64_t>(8 * row);
            std::vector<float> logits(begin, begin + 8);
            float largest = 0;
            for (const float l : logits) largest = std::max(largest, std::abs(l));
            std::ranges::sort(logits, std::greater());
            EXPECT_LT(logits[1] - logits[2], largest / 64) << "layer " << layer << ", row " << row;
          }
        }
      EXPECT_EQ(pairs, 2 * 2 * c.train.micro_batch * c.model.seq_len);
      EXPECT_LE(50 * flips, pairs);
      std::printf("%s: %d of %d choices differ from those of one rank\n", name, static_cast<int>(flips),
                  static_cast<int>(pairs));
    }
  }
  EXPECT_EQ(found, 2);
}

TEST(DividedExperts, GenerateAsOneRankDoes) {
  for (const LayoutCase& one : layouts(1)) {
    SCOPED_TRACE(one.name);
    expect_text_continued_as_on_one_rank(one.config);
  }
}

}  // namespace
}  // namespace trainer::tests
