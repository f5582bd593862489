// Attention over sequences that ranks share, compared with golden values of one rank (computed with numpy in fp64) and
// with the closed forms of what is sent.
#include "parallel/attention_core.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "comm/bytes.h"
#include "parallel/row_order.h"
#include "unit/parallel/pieces_rig.h"

namespace trainer::pieces {
namespace {

using parallel::AttentionCore;
using sharding::Transfer;

constexpr int64_t kTokens = 48, kCopies = 2, kHeads = 4, kKeyHeads = 2, kSize = 4;

/// The operands: q, k, v and the gradient of the context, of sequence i, position p, head h and dimension d.
double value_of(char operand, double i, double p, double h, double d) {
  switch (operand) {
    case 'q':
      return std::sin(1 + 0.9 * i + 0.31 * p + 1.7 * h + 0.53 * d);
    case 'k':
      return 1.5 * std::cos(2 + 0.5 * i + 0.47 * p + 1.3 * h + 0.29 * d);
    case 'v':
      return std::sin(3 + 0.8 * i + 0.23 * p + 0.6 * h + 1.1 * d);
    default:
      return std::cos(4 + 0.4 * i + 0.19 * p + 0.35 * h + 0.77 * d);
  }
}

/// Documents of a sequence. three: begin at positions 5, 20 and 31, in the second sequence one later. tokens: most have
/// one token, also where segments begin and end. single: every token is a document. whole: a sequence is a document.
enum class Documents : uint8_t { none, three, tokens, single, whole };
constexpr const char* kDocumentNames[] = {"none", "three", "tokens", "single", "whole"};

struct Masks {
  int64_t window = 0;
  Documents documents = Documents::none;
  double dropout = 0;
  int64_t length = kTokens;  // tokens of a sequence
};
bool begins(Documents documents, int64_t sequence, int64_t position) {
  switch (documents) {
    case Documents::three:
      return position == 5 + sequence || position == 20 + sequence || position == 31 + sequence;
    case Documents::tokens:
      return (position >= 5 && position <= 13) || (position >= 23 && position <= 25) || position == kTokens - 1;
    default:
      return documents == Documents::single;
  }
}
int64_t first_key(const Masks& masks, int64_t sequence, int64_t position) {
  while (position > 0 && !begins(masks.documents, sequence, position)) --position;
  return position;
}

/// Counts pairs of a query and a key that it sees, of all heads and sequences, between waits for collectives.
class PairsBetweenWaits final : public Recorder {
 public:
  void add_operator(const OpCall& call) override {
    if (call.kind == OpKind::attention) pairs.back() += call.cost.flops / (call.attention.backward ? 10 : 4) / kSize;
  }
  int64_t add_collective(const CommKey&, uint8_t, int64_t, int64_t, bool) override { return 0; }
  void add_wait(int64_t) override { pairs.push_back(0); }

  std::vector<double> pairs = {0};
};
using PairsByRank = std::map<int, std::vector<double>>;

/// Context and gradients by natural row, [rows, heads·size], the bytes on the wire of each operation, and the pairs
/// that each rank computes between waits.
struct Results {
  std::map<char, Values> of;
  std::map<CommOp, int64_t> wire;
  PairsByRank forward, backward;
  double at(char name, int64_t sequence, int64_t position, int64_t head, int64_t d) const {
    const int64_t heads = name == 'k' || name == 'v' ? kKeyHeads : kHeads;
    return of.at(name)[static_cast<size_t>(((sequence * kTokens + position) * heads + head) * kSize + d)];
  }
};

/// Runs one layer's attention on `tokens` ranks that share sequences, times `by_heads` that split heads. Messages of
/// rank `late` are sent 50 ms later.
Results attend(int64_t tokens, int64_t by_heads, Transfer schedule, const Masks& masks, DType type = DType::f64,
               int late = -1) {
  const sharding::AxisSet t = 2, h = 4;
  sharding::ModelSharding s{
      .axes = {{"data", 1}, {"tokens", tokens}, {"heads", by_heads}},
      .layers = {
          {.stream = {.rows = t}, .attention = {.rows = t, .cols = h}, .context = {.axes = t, .schedule = schedule}}}};
  config::Model model{.n_layer = 1, .n_head = kHeads, .n_kv_head = kKeyHeads, .d_model = kHeads * kSize};
  model.seq_len = masks.length;
  model.window = masks.window;
  model.dropout = masks.dropout;
  const int64_t length = masks.length;
  const parallel::RowOrder order(s, kCopies, length);
  Results results;
  for (const char name : {'o', 'q', 'k', 'v'})
    results.of[name].assign(
        static_cast<size_t>(kCopies * length * (name == 'k' || name == 'v' ? kKeyHeads : kHeads) * kSize),
        std::numeric_limits<double>::quiet_NaN());
  std::mutex mutex;
  comm::WorldOptions options{.timeout_s = 60};
  if (late >= 0) options.delay = [late](int rank) { return rank == late ? 0.05 : 0; };
  comm::run_on_threads(static_cast<int>(tokens * by_heads), options, [&](comm::World& world) {
    Rig rig(world, s, type);
    rig.batch.sequences = kCopies;
    rig.batch.seq_len = length;
    rig.batch.dropout = masks.dropout > 0;
    rig.batch.first_sample = 3;
    const parallel::Ranks& ranks = rig.strategy->ranks();
    const parallel::LayerSpec spec{0, 0, model, config::Recompute::none};
    const std::unique_ptr<AttentionCore> core = parallel::attention_core(ranks, s.layers.front(), spec);
    const int64_t rows = kCopies * length / tokens, first_row = ranks.index(t) * rows;
    const auto natural = [&](int64_t row) {
      return order.rows().empty() ? row : order.rows()[static_cast<size_t>(row)];
    };
    std::vector<int32_t> first_keys;
    for (int64_t row = 0; row < kCopies * length; ++row)
      first_keys.push_back(static_cast<int32_t>(first_key(masks, natural(row) / length, natural(row) % length)));
    if (masks.documents != Documents::none)
      rig.batch.first_key = {reinterpret_cast<std::byte*>(first_keys.data()), {std::ssize(first_keys)}, DType::i32};
    const int64_t q = core->query_width(), k = core->key_width();
    /// Calls f(column of this rank, sequence, position, head, dimension) for the elements of this rank's row.
    const auto each = [&](int64_t row, int64_t width, auto&& f) {
      const int64_t at = natural(first_row + row), head = ranks.index(h) * width / kSize;
      for (int64_t c = 0; c < width; ++c) f(c, at / length, at % length, head + c / kSize, c % kSize);
    };
    const Scratch qkv = rig.ex.take("qkv", {rows, q + 2 * k}, type), dout = rig.ex.take("dout", {rows, q}, type);
    const Tensor all = qkv;
    for (int64_t row = 0; row < rows; ++row) {
      const auto fill = [&](const Tensor& to, char operand) {
        each(row, to.cols(), [&](int64_t c, int64_t i, int64_t p, int64_t head, int64_t d) {
          set(to.row_range(row, 1), c, value_of(operand, i, p, head, d));
        });
      };
      fill(all.col_range(0, q), 'q');
      fill(all.col_range(q, k), 'k');
      fill(all.col_range(q + k, k), 'v');
      fill(dout, 'd');
    }
    const parallel::Heads x{all.col_range(0, q), all.col_range(q, k), all.col_range(q + k, k)};
    AttentionCore::Saved saved;
    PairsBetweenWaits forward, backward;
    rig.meter.recorder = &forward;
    core->forward(rig.ex, rig.batch, x, saved);
    rig.meter.recorder = &backward;
    const Scratch d = core->backward(rig.ex, rig.batch, dout, x, saved);
    const std::scoped_lock lock(mutex);
    results.forward[world.rank()] = forward.pairs;
    results.backward[world.rank()] = backward.pairs;
    for (int64_t row = 0; row < rows; ++row) {
      const auto keep = [&](char name, const Tensor& from, int64_t heads) {
        each(row, from.cols(), [&](int64_t c, int64_t i, int64_t p, int64_t head, int64_t dim) {
          results.of[name][static_cast<size_t>(((i * length + p) * heads + head) * kSize + dim)] =
              get(from.row_range(row, 1), c);
        });
      };
      keep('o', saved.context, kHeads);
      keep('q', d.tensor().col_range(0, q), kHeads);
      keep('k', d.tensor().col_range(q, k), kKeyHeads);
      keep('v', d.tensor().col_range(q + k, k), kKeyHeads);
    }
    if (!world.first()) return;
    for (const auto& [key, count] : rig.meter.comm()) results.wire[key.op] += count.wire_bytes;
  });
  return results;
}

void expect_equal(const Results& many, const Results& one, double tolerance) {
  for (const auto& [name, values] : one.of) {
    double apart = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double difference = std::abs(many.of.at(name)[i] - values[i]);
      apart = std::isnan(difference) ? difference : std::max(apart, difference);
    }
    EXPECT_LE(apart, tolerance) << name;
  }
}

struct Golden {
  Masks masks;
  int64_t sequence, position;
  double out, dq, dk, dv;  // out: head 1, dimension 2; dq: 3, 1; dk: 1, 0; dv: 0, 3
};
constexpr Golden kGolden[] = {
    {{}, 0, 24, 0.065004161963845, 0.000143003807049402, 0.0380946205816082, 0.237303872346289},
    {{}, 1, 47, 0.0853894918205268, 0.046148024696613, 0.0196930162918604, -0.0253053403125455},
    {{9}, 0, 24, 0.320669575636963, -0.0363321550483213, -0.122974649627827, 0.824378490080755},
    {{9}, 1, 47, -0.313603170792011, 0.437965983773992, 0.0405375446747086, -0.12215761616361},
    {{0, Documents::three}, 0, 24, -0.771427552428568, -0.0835576348129331, -0.0267874608198992, 0.515460916920587}};

TEST(SharedAttention, ComputesGoldenValuesByAnyExchangeOnAnyNumberOfRanks) {
  for (const Golden& golden : kGolden)
    for (const int64_t by_heads : {1, 2})
      for (const int64_t tokens : {1, 2, 3, 4})
        for (const Transfer schedule : {Transfer::at_once, Transfer::ring}) {
          SCOPED_TRACE(format("window {}, documents {}, tokens over {}, heads over {}, {}", golden.masks.window,
                              kDocumentNames[static_cast<size_t>(golden.masks.documents)], tokens, by_heads,
                              schedule == Transfer::ring ? "ring" : "gather"));
          const Results r = attend(tokens, by_heads, schedule, golden.masks);
          const int64_t i = golden.sequence, p = golden.position;
          EXPECT_NEAR(r.at('o', i, p, 1, 2), golden.out, 1e-12);
          EXPECT_NEAR(r.at('q', i, p, 3, 1), golden.dq, 1e-12);
          EXPECT_NEAR(r.at('k', i, p, 1, 0), golden.dk, 1e-12);
          EXPECT_NEAR(r.at('v', i, p, 0, 3), golden.dv, 1e-12);
        }
}

// A mistake in any element changes these.
TEST(SharedAttention, ComputesTheGoldenSumsOfGradients) {
  for (const auto& [tokens, by_heads] : {std::pair<int64_t, int64_t>{1, 1}, {2, 2}, {3, 1}, {4, 2}})
    for (const Transfer schedule : {Transfer::at_once, Transfer::ring}) {
      SCOPED_TRACE(format("{} x {} ranks, {}", tokens, by_heads, schedule == Transfer::ring ? "ring" : "gather"));
      const Results r = attend(tokens, by_heads, schedule, {});
      for (const auto& [name, golden] :
           {std::pair{'q', 95.717019636875}, {'k', 176.20200519575}, {'v', 414.11099743088}}) {
        double sum = 0;
        for (const double x : r.of.at(name)) sum += std::abs(x);
        EXPECT_NEAR(sum, golden, 1e-10) << name;
      }
    }
}

TEST(SharedAttention, EqualsOneRankForWindowsAndDocumentsThatCrossSegments) {
  for (const int64_t window : {0, 1, 5, 6, 7, 13, 40, 60})
    for (const Documents documents : {Documents::none, Documents::three, Documents::tokens}) {
      const Masks masks{window, documents, window % 2 == 0 ? 0.3 : 0};
      const Results one = attend(1, 1, Transfer::at_once, masks);
      for (const auto& [tokens, by_heads] : {std::pair<int64_t, int64_t>{2, 1}, {3, 2}, {4, 1}, {4, 2}, {6, 1}})
        for (const Transfer schedule : {Transfer::at_once, Transfer::ring}) {
          SCOPED_TRACE(format("window {}, documents {}, {} x {} ranks, {}", window,
                              kDocumentNames[static_cast<size_t>(documents)], tokens, by_heads,
                              schedule == Transfer::ring ? "ring" : "gather"));
          expect_equal(attend(tokens, by_heads, schedule, masks), one, 2e-14);
          expect_equal(attend(tokens, by_heads, schedule, masks, DType::f32), one, 2e-5);
        }
    }
}

// A query that sees only its own key has its value as context; the scores have no gradient.
TEST(SharedAttention, OfDocumentsOfOneTokenIsTheTokensValue) {
  for (const auto& [tokens, by_heads] : {std::pair<int64_t, int64_t>{1, 1}, {2, 2}, {3, 1}, {4, 1}})
    for (const Transfer schedule : {Transfer::at_once, Transfer::ring})
      for (const int64_t window : {0, 5}) {
        SCOPED_TRACE(format("{} x {} ranks, {}, window {}", tokens, by_heads,
                            schedule == Transfer::ring ? "ring" : "gather", window));
        const Results r = attend(tokens, by_heads, schedule, {window, Documents::single});
        for (int64_t i = 0; i < kCopies; ++i)
          for (int64_t p = 0; p < kTokens; ++p)
            for (int64_t d = 0; d < kSize; ++d) {
              const auto of = [&](char operand, int64_t head) {
                return value_of(operand, static_cast<double>(i), static_cast<double>(p), static_cast<double>(head),
                                static_cast<double>(d));
              };
              for (int64_t head = 0; head < kHeads; ++head) {
                ASSERT_NEAR(r.at('o', i, p, head, d), of('v', head / 2), 1e-15) << p;
                ASSERT_NEAR(r.at('q', i, p, head, d), 0, 1e-15) << p;
              }
              for (int64_t head = 0; head < kKeyHeads; ++head) {
                ASSERT_NEAR(r.at('k', i, p, head, d), 0, 2e-15) << p;
                ASSERT_NEAR(r.at('v', i, p, head, d), of('d', 2 * head) + of('d', 2 * head + 1), 1e-15) << p;
              }
            }
      }
}

TEST(SharedAttention, OfADocumentAsLongAsTheSequenceIsThatWithoutDocuments) {
  const Results without = attend(1, 1, Transfer::at_once, {});
  for (const int64_t tokens : {2, 3, 4})
    for (const Transfer schedule : {Transfer::at_once, Transfer::ring})
      expect_equal(attend(tokens, 1, schedule, {0, Documents::whole}), without, 2e-14);
}

// A segment of 128 tokens is a block of keys of the kernels, and two of queries.
TEST(SharedAttention, HasTheContextsBitsOfOneRankIfKeysAreGathered) {
  for (const DType type : {DType::f64, DType::f32, DType::bf16})
    for (const int64_t window : {0, 200}) {
      const Masks masks{window, Documents::three, 0.1, 768};
      const Results one = attend(1, 1, Transfer::at_once, masks, type),
                    three = attend(3, 1, Transfer::at_once, masks, type);
      EXPECT_TRUE(three.of.at('o') == one.of.at('o')) << name_of(type) << ", window " << window;
    }
}

// A rank uses no message before it has arrived, and none of an earlier step.
TEST(SharedAttention, HasTheSameBitsIfTheMessagesOfAnyRankAreLate) {
  for (const auto& [tokens, by_heads] : {std::pair<int64_t, int64_t>{3, 1}, {2, 2}})
    for (const auto& [schedule, window] :
         {std::pair<Transfer, int64_t>{Transfer::at_once, 0}, {Transfer::ring, 0}, {Transfer::at_once, 13}}) {
      const Masks masks{window, Documents::three, 0.1};
      const Results usual = attend(tokens, by_heads, schedule, masks, DType::bf16);
      for (int late = 0; late < tokens * by_heads; ++late) {
        const Results found = attend(tokens, by_heads, schedule, masks, DType::bf16, late);
        EXPECT_TRUE(found.of == usual.of) << format("{} x {} ranks, {}, window {}, rank {}", tokens, by_heads,
                                                    schedule == Transfer::ring ? "ring" : "gather", window, late);
      }
    }
}

// Elements of keys and values of all ranks: n = 2·sequences·S·key heads·size; each rank has n/c.
TEST(SharedAttention, SendsWhatTheClosedFormsSay) {
  for (const DType type : {DType::f64, DType::f32, DType::bf16})
    for (const int64_t c : {2, 3, 4}) {
      SCOPED_TRACE(format("{} ranks, {}", c, name_of(type)));
      const int64_t n = 2 * kCopies * kTokens * kKeyHeads * kSize, e = size_of(type), a = size_of(accumulator_of(type));
      const Results gather = attend(c, 1, Transfer::at_once, {}, type), ring = attend(c, 1, Transfer::ring, {}, type);
      const std::map<CommOp, int64_t> by_gather = {{CommOp::all_gather, 2 * (c - 1) * n * e},
                                                   {CommOp::reduce_scatter, (c - 1) * n * a}},
                                      by_ring = {{CommOp::shift, (c - 1) * n * (2 * e + a)}};
      EXPECT_EQ(gather.wire, by_gather);
      EXPECT_EQ(ring.wire, by_ring);
    }
}

// A rank receives the segments that its own two see and that it does not have. Of four ranks, in windows of a segment:
// [6] [0 5] [1 4] [2]; of four segments: 16 of the other ranks' 24.
TEST(SharedAttention, SendsOnlySegmentsThatWindowsSee) {
  struct Halo {
    int64_t ranks, window, received;  // window in tokens; segments that all ranks receive
  };
  for (const auto& [c, window, received] :
       {Halo{2, 12, 2}, {3, 8, 4}, {4, 6, 6}, {4, 7, 6}, {4, 8, 11}, {4, 12, 11}, {4, 24, 16}, {8, 2, 14}, {8, 4, 14}})
    for (const DType type : {DType::f64, DType::bf16})
      for (const Transfer schedule : {Transfer::at_once, Transfer::ring}) {
        SCOPED_TRACE(format("{} ranks, window of {}, {}", c, window, name_of(type)));
        const int64_t segment = 2 * kCopies * kTokens * kKeyHeads * kSize / (2 * c), e = size_of(type),
                      a = size_of(accumulator_of(type));
        EXPECT_EQ(attend(c, 1, schedule, {window}, type).wire,
                  (std::map<CommOp, int64_t>{{CommOp::all_to_all, received * segment * (2 * e + a)}}));
      }
}

// A rank has the segments k and 2c − 1 − k. With S/c consecutive tokens instead, a rank would wait in each step for one
// whose queries are later than all keys of the block: 2 − 1/c times as long.
TEST(SharedAttention, ComputesEquallyManyPairsOnAllRanksInEachStepOfARing) {
  for (const int64_t c : {2, 3, 4}) {
    const int64_t length = kTokens / (2 * c);
    const auto zigzag = [&](int64_t p) { return std::min(p / length, 2 * c - 1 - p / length); };
    const auto consecutive = [&](int64_t p) { return p / (2 * length); };
    /// Returns the pairs of queries of `rank` and keys of `from`, given the owners of tokens.
    const auto pairs = [&](const auto& owner, int64_t rank, int64_t from) {
      int64_t count = 0;
      for (int64_t q = 0; q < kTokens; ++q)
        for (int64_t k = 0; k <= q; ++k) count += owner(q) == rank && owner(k) == from;
      return static_cast<double>(count * kHeads * kCopies);
    };
    const Results r = attend(c, 1, Transfer::ring, {});
    double in_turn = 0, all = 0;
    for (int64_t step = 0; step < c; ++step) {
      double busiest = 0;
      for (int64_t rank = 0; rank < c; ++rank) {
        SCOPED_TRACE(format("{} ranks, rank {}, step {}", c, rank, step));
        const int64_t from = (rank + c - step) % c;
        const std::vector<double>& found = r.forward.at(static_cast<int>(rank));
        ASSERT_EQ(std::ssize(found), c);
        EXPECT_EQ(found[static_cast<size_t>(step)], pairs(zigzag, rank, from));
        EXPECT_EQ(found[static_cast<size_t>(step)], r.forward.at(0)[static_cast<size_t>(step)]);
        busiest = std::max(busiest, pairs(consecutive, rank, from));
      }
      in_turn += busiest;
      all += r.forward.at(0)[static_cast<size_t>(step)];
    }
    EXPECT_EQ(all * static_cast<double>(c), kTokens * (kTokens + 1) / 2 * kHeads * kCopies);
    EXPECT_NEAR(in_turn / all, 2 - 1 / static_cast<double>(c), 0.03);
    for (const auto& [rank, found] : r.backward) EXPECT_EQ(found, r.backward.at(0)) << c << " ranks, rank " << rank;
    EXPECT_EQ(std::accumulate(r.backward.at(0).begin(), r.backward.at(0).end(), 0.0), all);
  }
}

// In a window the first ranks have fewer pairs, since the first queries of a sequence see fewer keys.
TEST(SharedAttention, ComputesPairsOnceIfKeysAreGathered) {
  const auto of_ranks = [](int64_t window) {
    std::vector<double> all;
    for (const auto& [rank, found] : attend(4, 1, Transfer::at_once, {window}).forward)
      all.push_back(std::accumulate(found.begin(), found.end(), 0.0));
    return all;
  };
  EXPECT_EQ(of_ranks(0), std::vector<double>(4, 48 * 49 / 2 * kHeads * kCopies / 4));
  EXPECT_EQ(of_ranks(9), (std::vector<double>{600, 840, 864, 864}));
}

}  // namespace
}  // namespace trainer::pieces
