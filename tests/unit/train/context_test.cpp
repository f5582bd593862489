// Context parallelism at lengths for which it is made: gradients of one rank, and memory. Targets across the borders of
// ranks.
#include "rigs/layout_cases.h"
#include "rigs/slow.h"

namespace trainer::tests {
namespace {

using config::Config;
using config::Panels;

/// Returns a tiny model whose sequence `ranks` ranks share; `heads` of them split its heads.
Config one_sequence(int64_t length, int64_t ranks, int64_t heads, Panels kv) {
  Config c = tiny_config();
  c.parallel.strategy = config::StrategyName::fsdp;
  c.parallel.shards = c.parallel.context = ranks;
  c.parallel.context_heads = heads;
  c.parallel.context_kv = kv;
  c.parallel.data = 1;
  c.train.micro_batch = c.train.global_batch = 1;
  c.model.n_layer = 1;
  c.model.n_head = c.model.n_kv_head = 4;
  c.model.seq_len = length;
  return c;
}
struct Way {
  int64_t heads;
  Panels kv;
};
constexpr Way kWays[] = {{4, Panels::automatic}, {1, Panels::gather}, {1, Panels::ring}, {2, Panels::ring}};

/// Returns the memory of rank 0 of all ranks, by category.
BytesByCategory memory_of(const Config& c, DType compute = DType::f32, int64_t vocab = kTinyVocab) {
  device::DryDevice device(1);
  const auto world = comm::dry_world(static_cast<int>(config::ranks_of_replica(c)));
  train::Trainer trainer(device, *world, c, vocab, compute);
  trainer.plan();
  return trainer.memory();
}
/// Returns a program of rank 0 of all ranks, computed in bf16.
Arena::Program program_of(const Config& c, const char* name) {
  device::DryDevice device(1);
  const auto world = comm::dry_world(static_cast<int>(config::ranks_of_replica(c)));
  train::Trainer trainer(device, *world, c, kTinyVocab, DType::bf16);
  trainer.plan();
  return trainer.arena().programs().at(name);
}
/// Returns the most bytes alive at once in tensors whose names begin with `prefix`.
int64_t most_alive(const Arena::Program& program, std::string_view prefix) {
  std::map<int64_t, int64_t> changes;
  for (const Arena::Interval& item : program.intervals) {
    if (!item.tag.starts_with(prefix)) continue;
    changes[item.first] += item.bytes;
    changes[item.last] -= item.bytes;
  }
  int64_t alive = 0, most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, alive += change);
  return most;
}
double activations(const Config& c) { return static_cast<double>(memory_of(c).at("activations")); }

void expect_gradients_of_one_rank(const Config& c) {
  const Result many = train(c, DType::f64, 1), one = train(on_one_rank(c), DType::f64, 1);
  expect_same_gradients(many.gradients, one.gradients, 1e-12);
  EXPECT_NEAR(many.losses[0], one.losses[0], 1e-10 * one.losses[0]);
}

TEST(Context, OfOneLongSequenceFollowsOneRank) {
  for (const Way& way : kWays) expect_gradients_of_one_rank(one_sequence(2048, 4, way.heads, way.kv));
}

/// Returns a narrow model of 32 768 tokens, which four ranks share by a ring.
Config many_tokens() {
  Config c = one_sequence(32768, 4, 1, Panels::ring);
  c.model.n_layer = 2;
  c.model.d_model = 32;
  c.model.n_head = 2;
  c.model.n_kv_head = 1;
  return c;
}

// The slow test slow_Context runs this: 32 768 tokens on four ranks.
TEST(DISABLED_Context, OfManyTokensFollowsOneRankInLessThanAThirdOfTheMemory) {
  const Config c = many_tokens();
  expect_gradients_of_one_rank(c);
}

TEST(Context, OfManyTokensTakesLittleMoreThanItsShareOfTheActivations) {
  const Config c = many_tokens();
  EXPECT_LE(activations(c), 0.3 * activations(on_one_rank(c)));
  for (const auto& [way, most] : {std::pair<Way, double>{kWays[0], 0.27}, {kWays[1], 0.3}, {kWays[2], 0.28}}) {
    Config deep = one_sequence(4096, 4, way.heads, way.kv);
    deep.model.n_layer = 12;
    deep.model.d_model = 256;
    deep.model.d_ff = 1024;
    const double share = activations(deep) / activations(on_one_rank(deep));
    EXPECT_LE(share, most) << "heads over " << way.heads;
  }
}

/// 131072 tokens, four heads of 16 features, and rotary positions, which have no weights.
Config long_sequence(int64_t ranks, Panels kv, int64_t layers) {
  Config c = one_sequence(131072, ranks, 1, kv);
  config::set_family(c.model, config::Arch::llama);
  c.model.tie_embeddings = c.model.bias = false;
  c.model.d_model = 64;
  c.model.n_layer = layers;
  return c;
}

TEST(Context, SavesInEachLayerAnEqualShareOfEveryTensor) {
  for (const Panels kv : {Panels::gather, Panels::ring}) {
    const auto saved = [&](int64_t ranks) {
      return most_alive(program_of(long_sequence(ranks, kv, 4), "train"), "") -
             most_alive(program_of(long_sequence(ranks, kv, 2), "train"), "");
    };
    const int64_t whole = saved(1);
    EXPECT_GT(whole, 2 * 131072 * 64 * 2) << "of two layers, at least an input of bf16";
    for (const int64_t ranks : {2, 4, 8}) EXPECT_EQ(saved(ranks) * ranks, whole) << ranks << " ranks";
  }
}

// The closed forms: e, a: bytes of bf16 and f32; rows and own: tokens of all ranks and of this one. A gather takes one
// of the four heads at a time, 16 features of keys and of values, twice; next to it is the message of this rank's own.
TEST(Context, TakesTheMemoryOfItsExchange) {
  constexpr double e = 2, a = 4, rows = 131072;
  for (const double ranks : {4., 8.}) {
    const double own = rows / ranks, head = 2 * 16, all = 4 * head, queries = 64;
    const auto expect = [&](Panels kv, const char* program, double bytes) {
      const Config c = long_sequence(static_cast<int64_t>(ranks), kv, 2);
      EXPECT_NEAR(static_cast<double>(most_alive(program_of(c, program), "context.")), bytes, 0.02 * bytes)
          << ranks << " ranks, " << program << (kv == Panels::ring ? ", ring" : ", gather");
    };
    expect(Panels::gather, "evaluate", (2 * rows + own) * head * e);
    expect(Panels::gather, "train", (2 * rows + own) * head * (e + a));
    expect(Panels::ring, "evaluate", 2 * own * all * e + own * queries * (a + e / 2));
    expect(Panels::ring, "train", own * all * (2 * e + 4 * a) + own * queries * a);
  }
}

/// Returns the loss of the first step. `shifted`: targets are the next of the rows that the same rank has.
double loss_of(const Config& c, bool shifted) {
  double loss = 0;
  const int64_t ranks = config::ranks_of_replica(c);
  comm::run_on_threads(static_cast<int>(ranks), {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, c, DType::f64, 1);
    if (shifted)
      run.batches = [&, loader = run.batches](int64_t sample, int64_t sequences, data::TokenBatch& out) {
        loader(sample, sequences, out);
        const std::vector<int32_t>& rows = run.trainer.row_order().rows();
        ASSERT_EQ(rows.size(), out.ids.size());
        const size_t own = rows.size() / static_cast<size_t>(c.parallel.context);
        for (size_t r = 0; r < rows.size(); ++r) {
          const size_t next = r / own * own + (r + 1) % own;
          out.targets[static_cast<size_t>(rows[r])] = out.ids[static_cast<size_t>(rows[next])];
        }
      };
    const double found = run.step(1).loss;
    if (world.first()) loss = found;
  });
  return loss;
}

// A shift within each rank's rows, instead of the loader's targets, must not go unnoticed.
TEST(Context, NeedsTargetsFromOtherRanks) {
  for (const LayoutCase& one : layouts_named({"Shards2Data1Gpt2Shared2Gather", "Shards4Data1LlamaShared4Ring",
                                              "Tensor2Data1SpEach2LlamaShared2Gather"})) {
    SCOPED_TRACE(one.name);
    const double expected = loss_of(on_one_rank(one.config), false);
    EXPECT_NEAR(loss_of(one.config, false), expected, 1e-12 * expected);
    EXPECT_GT(std::abs(loss_of(one.config, true) - expected), 1e-6 * expected);
  }
}

/// Llama 3 8B, one sequence of a million tokens, all recomputed, on 64 ranks.
Config a_million_tokens() {
  Config c = tiny_config(config::Arch::llama);
  c.model.n_layer = 32;
  c.model.n_head = 32;
  c.model.n_kv_head = 8;
  c.model.d_model = 4096;
  c.model.d_ff = 14336;
  c.model.seq_len = 1048576;
  c.model.dropout = 0;
  c.train.micro_batch = c.train.global_batch = 1;
  c.train.recompute = config::Recompute::full;
  c.parallel.data = 1;
  return c;
}
Config by_tensor(Panels kv) {
  Config c = a_million_tokens();
  c.parallel.tensor = c.parallel.context = 8;
  c.parallel.context_kv = kv;
  return c;
}
Config by_shards(Panels kv, int64_t heads) {
  Config c = a_million_tokens();
  c.parallel.strategy = config::StrategyName::fsdp;
  c.parallel.shards = c.parallel.context = 64;
  c.parallel.context_heads = heads;
  c.parallel.context_kv = kv;
  return c;
}

// Predicted by hand: 14 to 17 GB per rank, at most 20.
TEST(Context, OfAMillionTokensFitsOn64RanksOf20GB) {
  for (const Panels kv : {Panels::gather, Panels::ring})
    for (const Config& layout : {by_tensor(kv), by_shards(kv, 0)}) {
      int64_t total = 0;
      for (const auto& [category, bytes] : memory_of(layout, DType::bf16, 128256)) total += bytes;
      EXPECT_LE(total, int64_t{20'000'000'000}) << config::layout_text(layout);
      EXPECT_GE(total, int64_t{8'000'000'000}) << config::layout_text(layout);
    }
}

/// Returns the bytes that one group of ranks of each axis sends in a step, by operation.
CommBytes bytes_of(const Config& c) {
  device::DryDevice device(1);
  const auto world = comm::dry_world(static_cast<int>(config::ranks_of_replica(c)));
  train::Trainer trainer(device, *world, c, 128256, DType::bf16);
  trainer.plan();
  return trainer.comm_bytes_per_step();
}

// Keys and values of a group of c ranks: n = 2·S·(key heads of a rank)·128 elements. They are sent in bf16 forward,
// backward, and where a layer is recomputed, their gradients in fp32. Weights, which are gathered too, are the same for
// both exchanges.
TEST(Context, OfAMillionTokensSendsWhatTheClosedFormsSay) {
  constexpr int64_t kLayers = 32, kTokens = 1048576, kSize = 128;
  const auto sent = [](int64_t ranks, int64_t key_heads, int64_t bytes) {
    return kLayers * (ranks - 1) * 2 * kTokens * key_heads * kSize * bytes;
  };
  const auto expect = [&](const Config& gather, const Config& ring, const char* axis, int64_t ranks, int64_t heads) {
    SCOPED_TRACE(config::layout_text(ring));
    CommBytes gathered = bytes_of(gather), passed = bytes_of(ring);
    const int64_t keys = ring.train.recompute == config::Recompute::full ? 2 + 2 + 2 : 2 + 2;
    EXPECT_EQ(passed.at(axis).at("shift"), sent(ranks, heads, keys + 4));
    EXPECT_EQ(gathered.at(axis)["all_gather"] - passed.at(axis)["all_gather"], sent(ranks, heads, keys));
    EXPECT_EQ(gathered.at(axis)["reduce_scatter"] - passed.at(axis)["reduce_scatter"], sent(ranks, heads, 4));
    EXPECT_FALSE(gathered.at(axis).contains("shift"));
    return passed;
  };
  expect(by_tensor(Panels::gather), by_tensor(Panels::ring), "context", 8, 1);
  expect(by_shards(Panels::gather, 1), by_shards(Panels::ring, 1), "context", 64, 8);
  // By bytes, 32 ranks exchange heads, a query head each. Four of them share each key head: they exchange the rows of
  // eight heads and gather those of their own. Backward, rows of the context go to `out` again.
  for (const auto& [recompute, passes] : {std::pair{config::Recompute::none, 1}, {config::Recompute::full, 2}}) {
    Config gather = by_shards(Panels::gather, 0), ring = by_shards(Panels::ring, 0);
    gather.train.recompute = ring.train.recompute = recompute;
    const CommBytes both = expect(gather, ring, "tokens", 2, 1);
    constexpr int64_t kRows = kTokens / 64, kIn = 32 + 2 * 8, kOut = 32;
    EXPECT_EQ(both.at("heads").at("all_to_all"),
              kLayers * 31 * kRows * kSize * 2 * (passes * (kIn + kOut) + kOut + kOut + kIn));
    EXPECT_EQ(both.at("rep").at("all_gather"), kLayers * passes * 3 * 2 * (kTokens / 2) * kSize * 2);
  }
}

}  // namespace
}  // namespace trainer::tests
