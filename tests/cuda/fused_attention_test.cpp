// The choice between a library and the built-in kernels for passes of attention, with a library that records its calls.
#include "ops/cuda/fused_attention.h"

#include <gtest/gtest.h>

#include "rigs/messages.h"
#include "unit/ops/op_fixture.h"

namespace trainer::ops::testing {
namespace {

/// Supports everything except backward passes with head size 16; writes kWritten.
constexpr double kWritten = 0.011474609375;  // the bf16 of bytes 0x3c

struct Fake final : cuda::FusedAttention {
  std::vector<cuda::FusedShape> considered, ran;
  int64_t bytes_per_sequence = 500, linear_bytes = 100;
  std::vector<const void*> outs, lses;

  explicit Fake(int64_t most_workspace = 1000) : FusedAttention(most_workspace) {}
  std::string name() const override { return "fake 1.0"; }
  std::optional<int64_t> workspace(const cuda::FusedShape& shape) override {
    considered.push_back(shape);
    if (shape.backward && shape.head_dim == 16) return std::nullopt;
    if (shape.linear) return linear_bytes < 0 ? std::nullopt : std::optional(linear_bytes);
    return shape.batch * bytes_per_sequence;
  }
  using FusedAttention::run;
  void run(cudaStream_t stream, const cuda::FusedShape& shape, const cuda::FusedOperands& o, void* workspace) override {
    ran.push_back(shape);
    outs.push_back(o.out);
    lses.push_back(o.lse);
    EXPECT_NE(workspace, nullptr);
    EXPECT_EQ(o.lse != nullptr, shape.backward || shape.keeps_lse);
    const auto write = [&](void* to, size_t place, int64_t rows, int64_t apart, int64_t heads) {
      ASSERT_NE(to, nullptr);
      for (int64_t i = 0; i < shape.batch; ++i)
        for (int64_t row = i * apart; row < i * apart + rows; ++row)
          cudaMemsetAsync(static_cast<std::byte*>(to) + 2 * row * shape.row_distance[place], 0x3c,
                          static_cast<size_t>(2 * heads * shape.head_dim), stream);
    };
    if (!shape.backward) return write(o.out, 3, shape.length, shape.length, shape.heads);
    EXPECT_NE(o.dout, nullptr);
    write(o.dq, 5, shape.length, shape.length, shape.heads);
    write(o.dk, 6, shape.keys, shape.key_rows, shape.kv_heads);
    write(o.dv, 7, shape.keys, shape.key_rows, shape.kv_heads);
  }
};

struct FusedAttention : ::testing::Test {
  FusedAttention() {
    auto made = std::make_unique<Fake>();
    fake = made.get();
    machine.device->libraries()->attention = std::move(made);
  }

  struct Case {
    DType dtype = DType::bf16;
    int64_t queries = 12, keys = 12, head_dim = 8;
    double dropout = 0;
    bool lse = true, backward = false;
    int64_t gap = 0;      // between rows
    int64_t earlier = 0;  // positions of the last query after the last key
    bool adds = false;    // backward: to gradients in fp32
    int64_t spare = 0;    // rows between the sequences' keys
  };
  struct Gradients {
    TestTensor dq, dk, dv;
  };
  /// Runs one pass over two sequences, with four query heads and two key/value heads; returns its output. Gradients are
  /// added to ones.
  TestTensor pass(const Case& c, Gradients* gradients = nullptr) {
    constexpr int64_t kBatch = 2, kHeads = 4, kKvHeads = 2;
    const AttentionShape shape{.batch = kBatch,
                               .q_len = c.queries,
                               .k_len = c.keys,
                               .k_capacity = c.keys + c.spare,
                               .heads = kHeads,
                               .kv_heads = kKvHeads,
                               .head_dim = c.head_dim,
                               .first_query = c.keys - c.queries + c.earlier};
    const DType sums = accumulator_of(c.dtype);
    Normal draw(3);
    const auto rows = [&](int64_t length, int64_t heads) {
      return TestTensor({kBatch * length, heads * c.head_dim}, c.dtype, c.gap).fill(draw);
    };
    const int64_t key_rows = c.keys + c.spare;
    TestTensor q = rows(c.queries, kHeads), k = rows(key_rows, kKvHeads), v = rows(key_rows, kKvHeads),
               out = rows(c.queries, kHeads);
    TestTensor lse({kBatch * kHeads, c.queries}, sums);
    const AttentionDropout dropout{.p = c.dropout, .key = philox_key(1, "mask"), .heads_global = kHeads};
    const AttentionForward forward{q, k, v, out, c.lse ? Tensor(lse) : Tensor(), shape, 0.5, dropout};
    if (!c.backward) {
      testing::run(machine.ex, forward);
    } else {
      lse.fill([] { return 1.0; });
      TestTensor dout = rows(c.queries, kHeads), dq = out, dk = k, dv = v;
      if (c.adds)
        for (TestTensor* x : {&dq, &dk, &dv})
          *x = TestTensor({x->tensor().rows(), x->tensor().cols()}, sums, c.gap).fill([] { return 1.0; });
      testing::run(machine.ex, AttentionBackward{forward, dout, dq, dk, dv, c.adds, c.adds});
      if (gradients != nullptr) *gradients = {dq, dk, dv};
    }
    return out;
  }

  Machine machine{1};
  Fake* fake = nullptr;
};

TEST_F(FusedAttention, TakesTrainingInBf16) {
  const TestTensor out = pass({});
  ASSERT_EQ(fake->ran.size(), 1u);
  const cuda::FusedShape expected{.batch = 2,
                                  .length = 12,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .head_dim = 8,
                                  .keys = 12,
                                  .key_rows = 12,
                                  .scale = 0.5f,
                                  .row_distance = {32, 16, 16, 32}};
  EXPECT_EQ(fake->ran.front(), expected);
  for (int64_t i = 0; i < out.count(); ++i) ASSERT_EQ(out.at(i), out.at(0)) << "the library's output";
  pass({.lse = false});
  EXPECT_FALSE(fake->ran.back().keeps_lse);
  pass({.backward = true, .gap = 8});
  cuda::FusedShape backward = expected;
  backward.backward = true;
  backward.row_distance = {40, 24, 24, 40, 40, 40, 24, 24};
  EXPECT_EQ(fake->ran.back(), backward);
  EXPECT_EQ(attention_path(*machine.device), "fake 1.0");
}

TEST_F(FusedAttention, LeavesTheRestToOurKernels) {
  for (const Case& c :
       {Case{.dtype = DType::f32}, Case{.dropout = 0.5}, Case{.queries = 6, .lse = false},
        Case{.queries = 3, .keys = 3}, Case{.head_dim = 12}, Case{.gap = 2}, Case{.dropout = 0.5, .backward = true},
        Case{.earlier = 3}, Case{.keys = 13, .earlier = -1}, Case{.backward = true, .earlier = 3},
        Case{.lse = false, .spare = 1}, Case{.dtype = DType::f32, .backward = true, .adds = true}}) {
    const TestTensor out = pass(c);
    EXPECT_TRUE(fake->considered.empty());
    bool differ = false;
    for (int64_t i = 1; i < out.count(); ++i) differ |= out.at(i) != out.at(0);
    EXPECT_TRUE(differ);
  }
  pass({.head_dim = 16, .backward = true});  // requested, and rejected by the library
  EXPECT_EQ(fake->considered.size(), 1u);
  EXPECT_TRUE(fake->ran.empty());
  machine.device->libraries()->attention = nullptr;
  pass({});
  EXPECT_EQ(attention_path(*machine.device), "built-in kernels");
}

// A rank's calls where ranks share sequences: queries after some of the keys, or after all of them.
TEST_F(FusedAttention, TakesPartsOfSequences) {
  using cuda::FusedMask;
  for (const auto& [c, mask] : {std::pair(Case{.queries = 6}, FusedMask::bottom_right),
                                {Case{.queries = 6, .spare = 3}, FusedMask::bottom_right},
                                {Case{.spare = 3}, FusedMask::causal},
                                {Case{.earlier = 11}, FusedMask::none},
                                {Case{.queries = 7, .keys = 5, .earlier = 40}, FusedMask::none}}) {
    for (const bool backward : {false, true}) {
      Case of_pass = c;
      of_pass.backward = of_pass.adds = backward;
      Gradients sums;
      const TestTensor out = pass(of_pass, &sums);
      ASSERT_FALSE(fake->ran.empty());
      const cuda::FusedShape& shape = fake->ran.back();
      EXPECT_EQ(shape.mask, mask);
      EXPECT_EQ(shape.backward, backward);
      EXPECT_EQ(std::tuple(shape.length, shape.keys, shape.key_rows), std::tuple(c.queries, c.keys, c.keys + c.spare));
      if (!backward) continue;
      for (const TestTensor* x : {&sums.dq, &sums.dk, &sums.dv}) {
        const int64_t per_sequence = x->count() / 2, cols = x->tensor().cols();
        const int64_t written = (x == &sums.dq ? c.queries : c.keys) * cols;
        for (int64_t i = 0; i < x->count(); ++i)
          ASSERT_EQ(x->at(i), i % per_sequence < written ? 1 + kWritten : 1) << "added, and only to rows in use";
      }
    }
  }
}

TEST_F(FusedAttention, PlansItsWorkspaceOnADryDevice) {
  const auto dry = device::make_dry(*machine.device);
  Arena arena(*machine.device);
  Exec plan{*dry, arena, machine.meter};
  const auto tensor = [](int64_t cols) { return Tensor{nullptr, {24, cols}, DType::bf16, 0}; };
  const AttentionShape shape{.batch = 2, .q_len = 12, .k_len = 12, .heads = 4, .kv_heads = 2, .head_dim = 8};
  arena.record("forward", [&] {
    ops::run(plan, AttentionForward{tensor(32), tensor(16), tensor(16), tensor(32), {}, shape, 0.5, {}});
  });
  const auto& intervals = arena.programs().at("forward").intervals;
  ASSERT_EQ(intervals.size(), 1u);
  EXPECT_EQ(intervals.front().tag, "attention.workspace");
  EXPECT_EQ(intervals.front().bytes, round_up(2 * fake->bytes_per_sequence, machine.device->alignment()));
  EXPECT_TRUE(fake->ran.empty());
}

/// Returns how many sequences at a time a fake runs of a pass over `batch` sequences, and whether it uses the linear
/// algorithm; {0, false} if it does not run the pass.
std::pair<int64_t, bool> way_of(Fake& fake, int64_t batch, bool backward = true) {
  const tests::Warnings logged;
  const cuda::FusedShape shape{.backward = backward,
                               .batch = batch,
                               .length = 12,
                               .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 8,
                               .keys = 12,
                               .key_rows = 12};
  const std::optional<cuda::FusedWay> way = fake.way(shape);
  EXPECT_EQ(logged.lines.size(), !way || way->part.linear ? 1u : 0u);
  if (!way) return {0, false};
  const bool linear = way->part.linear;
  const int64_t rest = batch % way->part.batch;
  EXPECT_EQ(way->workspace, linear ? fake.linear_bytes : fake.bytes_per_sequence * way->part.batch);
  EXPECT_TRUE(rest == 0 || rest < way->part.batch);
  const size_t considered = fake.considered.size();
  EXPECT_EQ(fake.way(shape)->part, way->part);
  EXPECT_EQ(fake.considered.size(), considered) << "known";
  return {way->part.batch, linear};
}

TEST(Workspace, DecidesHowALibraryRunsAPass) {
  using Way = std::pair<int64_t, bool>;
  Fake fits(4000), two_parts(3999), three_parts(1500), single(500), linear(499), large(99), none(499);
  EXPECT_EQ(way_of(fits, 8), Way(8, false));
  EXPECT_EQ(way_of(two_parts, 8), Way(4, false)) << "two equal parts, not seven sequences and one";
  EXPECT_EQ(way_of(three_parts, 8), Way(3, false)) << "3, 3 and 2";
  EXPECT_EQ(way_of(single, 3), Way(1, false));
  EXPECT_EQ(way_of(linear, 8), Way(8, true));
  EXPECT_EQ(way_of(large, 8), Way(0, false)) << "too much for the linear algorithm too";
  none.linear_bytes = -1;
  EXPECT_EQ(way_of(none, 8), Way(0, false));
  EXPECT_EQ(way_of(linear, 8, /*backward=*/false), Way(0, false)) << "only backward passes have a linear algorithm";
}

TEST_F(FusedAttention, RunsABatchInParts) {
  auto made = std::make_unique<Fake>(500);
  fake = made.get();
  machine.device->libraries()->attention = std::move(made);
  const TestTensor out = pass({.gap = 8});
  ASSERT_EQ(fake->ran.size(), 2u);
  for (const cuda::FusedShape& shape : fake->ran) EXPECT_EQ(shape.batch, 1);
  for (int64_t i = 0; i < out.count(); ++i) ASSERT_EQ(out.at(i), out.at(0)) << "both sequences";
  const auto distance = [](const std::vector<const void*>& at) {
    return static_cast<const std::byte*>(at[1]) - static_cast<const std::byte*>(at[0]);
  };
  EXPECT_EQ(distance(fake->outs), 12 * (32 + 8) * 2) << "12 rows of bf16";
  EXPECT_EQ(distance(fake->lses), 4 * 12 * 4) << "4 heads, 12 rows of fp32";
}

TEST(Cudnn, ReportsWhyItIsNotThere) {
  // The emulated device is built without cuDNN; a build with cuDNN requires the library and a GPU.
  tests::expect_error(Code::usage, {"without cuDNN"},
                      [] { cudnn_attention(device::cuda::devices().front(), /*deterministic=*/true); });
}

}  // namespace
}  // namespace trainer::ops::testing
