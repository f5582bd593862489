// Attention calls over parts of a sequence: any runs of its queries and keys, as ranks have them that split its tokens.
#include <algorithm>

#include "ops/merge_attention.h"
#include "unit/ops/attention_panels.h"
#include "unit/ops/attention_problem.h"

namespace trainer::ops::attention_test {
namespace {

template <typename T>
class AttentionParts : public testing::DeviceTest {};
using Types = ::testing::Types<double, float, bf16>;
TYPED_TEST_SUITE(AttentionParts, Types);

/// Kernels under test: the device's own (null), or panels.
template <typename T>
std::vector<Panels> kernel_sets() {
  std::vector<Panels> sets;
  for (const Isa isa : testing::instruction_sets()) sets.push_back({isa, nullptr});
  if (std::is_same_v<T, bf16> && !testing::on_cuda())
    for (const Panels& set : panels()) sets.push_back(set);
  return sets;
}
/// Runs an operator in scratch memory that is full of NaN: results must not depend on what no kernel has written.
template <typename Op>
void run_with(const Panels& set, const Op& op) {
  const auto device = testing::make_test_device(2, set.isa), dry = device::make_dry(*device);
  Arena arena(*device);
  Meter meter;
  TestExec ex{{*device, arena, meter}}, dry_ex{{*dry, arena, meter}};
  const auto call = [&](TestExec& exec) {
    const std::vector<std::byte> nan(size_t{4} << 20, std::byte{0xff});
    const auto size = static_cast<int64_t>(nan.size());
    exec.device.copy_to_device(exec.take("earlier contents", {size}, DType::u8).tensor().data, nan.data(), size);
    set.kernels == nullptr ? run(exec, op) : own_attention(exec, op, *set.kernels);
  };
  arena.record("call", [&] { call(dry_ex); });
  arena.seal();
  arena.begin("call");
  call(ex);
  arena.end();
}

constexpr double kUntouched = 3.25;

/// A call over a part of the square problem `x`, with the square's out and lse. Keys that are not part of the call are
/// NaN, and none follow those of the last sequence.
template <typename T>
Problem<T> part_of(Problem<T>& x, const AttentionShape& s) {
  Problem<T> y = x;
  const int64_t length = x.c.shape.q_len, room = s.capacity();
  y.c.shape = s;
  const auto take = [&](Rows<T>& to, Rows<T>& from, int64_t first, int64_t n, int64_t rows, double fill) {
    to = Rows<T>((s.batch - 1) * rows + n, from.cols, x.c.spread, fill);
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t i = 0; i < n; ++i)
        for (int64_t e = 0; e < from.cols; ++e) to.at(b * rows + i, e) = from.at(b * length + first + i, e);
  };
  take(y.q, x.q, s.first_query, s.q_len, s.q_len, 0);
  take(y.out, x.out, s.first_query, s.q_len, s.q_len, kUntouched);
  take(y.dout, x.dout, s.first_query, s.q_len, s.q_len, 0);
  take(y.k, x.k, s.first_key, s.k_len, room, std::nan(""));
  take(y.v, x.v, s.first_key, s.k_len, room, std::nan(""));
  y.dq = Rows<T>(y.q.rows, y.q.cols, x.c.spread, kUntouched);
  y.dk = y.dv = Rows<T>(y.k.rows, y.k.cols, x.c.spread, kUntouched);
  y.lse = Rows<AccumulatorOf<T>>(s.batch * s.heads, s.q_len, false);
  for (int64_t r = 0; r < y.lse.rows; ++r)
    for (int64_t i = 0; i < s.q_len; ++i) y.lse.at(r, i) = x.lse.at(r, s.first_query + i);
  if (x.first.empty()) return y;
  y.first.clear();
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t i = 0; i < s.q_len; ++i) y.first.push_back(x.first[b * length + s.first_query + i]);
  return y;
}

/// Expects rows [first, first + n) of each sequence of `expected`, whose sequences have `length` rows, at the
/// beginning of each `room` rows of `got`, and the rest of `got` to be untouched. A part may be a small difference, so
/// errors are relative to `whole` and to values of a usual size.
template <typename T>
void expect_part(const Rows<T>& got, const Matrix& expected, const Matrix& whole, int64_t length, int64_t first,
                 int64_t n, int64_t room, double bound, const char* name) {
  double difference = 0, norm = 0;
  int64_t count = 0;
  for (int64_t r = 0; r < got.rows; ++r)
    for (int64_t c = 0; c < got.pitch; ++c) {
      const int64_t e = c - got.before;
      const double value = got.value(r, e);
      if (r % room >= n || e < 0 || e >= got.cols) {
        ASSERT_EQ(value, kUntouched) << name << " row " << r << " column " << e;
        continue;
      }
      const auto at = static_cast<size_t>((r / room * length + first + r % room) * got.cols + e);
      difference += std::pow(value - expected[at], 2);
      norm += std::pow(whole[at], 2);
      ++count;
    }
  EXPECT_LE(std::sqrt(difference), bound * (std::sqrt(norm) + 0.2 * std::sqrt(static_cast<double>(count)))) << name;
}
template <typename T>
void expect_zero(const Rows<T>& rows, int64_t first, int64_t n) {
  for (int64_t r = first; r < first + n; ++r)
    for (int64_t e = 0; e < rows.cols; ++e) ASSERT_EQ(rows.value(r, e), 0) << "row " << r << " column " << e;
}

/// Draws squares, with documents whose first keys may be after the row itself.
struct Draw {
  std::mt19937 rng;
  int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(rng); }
  bool one_of(int n) { return between(1, n) == 1; }

  template <typename T>
  Problem<T> square() {
    const int64_t length = one_of(3) ? between(2, 40) : between(41, one_of(3) ? 330 : 160), kv_heads = between(1, 2);
    Case c{{between(1, 2), length, length, 0, kv_heads * between(1, 2), kv_heads, between(1, 24)}};
    if (testing::on_cuda()) {  // whose tiles depend on the head size, and whose accesses on alignment
      constexpr int64_t kSizes[] = {1, 24, 40, 64, 96, 128, 256, 300};
      c.shape.head_dim = kSizes[between(0, 7)];
      c.spread = one_of(2);
    }
    if (one_of(3)) c.dropout = 0.25;
    if (one_of(2)) c.window = between(2, length + 5);
    if (one_of(2)) c.documents = one_of(2) ? 0.3 : 0.01;
    Problem<T> x(c, static_cast<unsigned>(between(1, 1 << 20)));
    if (one_of(2))
      for (size_t i = 0; i < x.first.size(); ++i) {
        const bool begins = i % static_cast<size_t>(length) == 0;
        if (one_of(20)) x.first[i] += static_cast<int32_t>(between(0, 50));
        if (!begins) x.first[i] = std::max(x.first[i], x.first[i - 1]);
      }
    const Reference<T> expected(x, false);
    for (int64_t r = 0; r < x.out.rows; ++r)
      for (int64_t e = 0; e < x.out.cols; ++e)
        x.out.at(r, e) = T(static_cast<AccumulatorOf<T>>(expected.out[r * x.out.cols + e]));
    for (int64_t i = 0; i < x.lse.rows * length; ++i) x.lse.data[i] = static_cast<AccumulatorOf<T>>(expected.lse[i]);
    return x;
  }
  /// Returns a part of a square.
  AttentionShape part(const AttentionShape& square) {
    AttentionShape s = square;
    s.length = square.q_len;
    s.first_query = between(0, s.length - 1);
    s.q_len =
        one_of(4) ? between(1, std::min<int64_t>(4, s.length - s.first_query)) : between(1, s.length - s.first_query);
    s.first_key = one_of(4) ? 0 : between(0, s.length - 1);
    s.k_len = between(1, s.length - s.first_key);
    s.k_capacity = one_of(2) ? s.k_len + between(0, 9) : 0;
    return s;
  }
};

/// Returns the number of keys that a row sees, by looking at each.
template <typename T>
int64_t pairs_of(const Problem<T>& x, int64_t row) {
  const AttentionShape& s = x.c.shape;
  int64_t pairs = 0;
  for (int64_t j = 0; j < s.k_len; ++j) pairs += j >= x.first_key(row) && j <= s.earlier() + row % s.q_len ? 1 : 0;
  return pairs;
}

TYPED_TEST(AttentionParts, AreTheSameRowsOfOneSquare) {
  using T = TypeParam;
  const double u = unit_roundoff<T>();
  Draw draw{std::mt19937(7)};
  for (int i = 0; i < 25; ++i) {
    Problem<T> x = draw.square<T>();
    const int64_t length = x.c.shape.q_len;
    const Reference<T> whole(x);
    for (int j = 0; j < 2; ++j) {
      const AttentionShape s = draw.part(x.c.shape);
      const Problem<T> before = part_of(x, s);
      const Reference<T> expected(before, false);
      const Reference<T> gradients(x, true,
                                   {s.first_query, s.first_query + s.q_len, s.first_key, s.first_key + s.k_len});
      for (const Panels& set : kernel_sets<T>()) {
        SCOPED_TRACE(fmt::format("{} of {}, {}, panels {}", to_string(before.c), length, device::name_of(set.isa),
                                 set.kernels != nullptr));
        Problem<T> y = before, z = before;
        run_with(set, y.forward_op());
        expect_part(y.out, expected.out, expected.out, s.q_len, 0, s.q_len, s.q_len, bound<T>(1e-14, 32 * u, u), "out");
        for (size_t at = 0; at < expected.lse.size(); ++at) {
          const double want = expected.lse[at], got = y.lse.data[at];
          if (got == want) continue;  // also if infinite
          ASSERT_NEAR(got, want, bound<T>(1e-14, 1e-5, 1e-5) * (1 + std::abs(want)));
        }

        run_with(set, z.backward_op());
        const double close = bound<T>(1e-13, 64 * u, 2 * u);
        const int64_t room = s.capacity();
        expect_part(z.dq, gradients.dq, whole.dq, length, s.first_query, s.q_len, s.q_len, close, "dq");
        expect_part(z.dk, gradients.dk, whole.dk, length, s.first_key, s.k_len, room, close, "dk");
        expect_part(z.dv, gradients.dv, whole.dv, length, s.first_key, s.k_len, room, close, "dv");
        for (int64_t r = 0; r < y.out.rows; ++r)
          if (pairs_of(y, r) == 0) expect_zero(y.out, r, 1), expect_zero(z.dq, r, 1);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TYPED_TEST(AttentionParts, HaveNoResultWithoutKeys) {
  using T = TypeParam;
  Problem<T> x(Case{{2, 400, 400, 0, 4, 2, 24}});
  for (T& value : x.out.data) value = T(1.0f);
  for (const auto& [first_query, q_len, first_key, k_len] :
       std::vector<std::array<int64_t, 4>>{{0, 3, 3, 5}, {0, 70, 70, 130}, {0, 3, 300, 100}, {100, 150, 250, 1}})
    for (const bool masked : {false, true}) {
      // All keys are after the queries; if masked, before them, but also before the first visible key.
      Problem<T> y = part_of(x, {2, q_len, k_len, 0, 4, 2, 24, false, masked ? first_key : first_query,
                                 masked ? first_query : first_key, 1000});
      if (masked) y.first.assign(static_cast<size_t>(2 * q_len), static_cast<int32_t>(first_query + k_len));
      for (const Panels& set : kernel_sets<T>()) {
        SCOPED_TRACE(to_string(y.c));
        run_with(set, y.forward_op());
        for (const auto lse : y.lse.data) ASSERT_EQ(lse, -std::numeric_limits<AccumulatorOf<T>>::infinity());
        run_with(set, y.backward_op());
        for (const auto* rows : {&y.out, &y.dq, &y.dk, &y.dv}) expect_zero(*rows, 0, rows->rows);
      }
    }
}

TYPED_TEST(AttentionParts, AddUpToOneCallInTheAccumulatorType) {
  using T = TypeParam;
  using A = AccumulatorOf<T>;
  const double u = unit_roundoff<T>();
  Draw draw{std::mt19937(11)};
  for (int i = 0; i < 8; ++i) {
    Problem<T> x = draw.square<T>();
    const AttentionShape& s = x.c.shape;
    const auto cuts = [&] {
      std::vector<int64_t> at{0, draw.between(0, s.q_len), draw.between(0, s.q_len), s.q_len};
      std::sort(at.begin(), at.end());
      at.erase(std::unique(at.begin(), at.end()), at.end());
      return at;
    };
    const std::vector<int64_t> queries = cuts(), keys = cuts();
    const Reference<T> expected(x);
    for (const Panels& set : kernel_sets<T>()) {
      SCOPED_TRACE(fmt::format("{}, {}, panels {}", to_string(x.c), device::name_of(set.isa), set.kernels != nullptr));
      Rows<A> dq(x.q.rows, x.q.cols, x.c.spread), dk(x.k.rows, x.k.cols, x.c.spread), dv = dk;
      for (size_t q = 1; q < queries.size(); ++q)
        for (size_t k = 1; k < keys.size(); ++k) {
          Problem<T> y = part_of(x, {s.batch, queries[q] - queries[q - 1], keys[k] - keys[k - 1], 0, s.heads,
                                     s.kv_heads, s.head_dim, false, queries[q - 1], keys[k - 1], s.q_len});
          const auto slice = [&](Rows<A>& from, int64_t first, int64_t n) {
            Rows<A> part(s.batch * n, from.cols, x.c.spread);
            for (int64_t r = 0; r < part.rows; ++r)
              for (int64_t e = 0; e < from.cols; ++e) part.at(r, e) = from.at(r / n * s.q_len + first + r % n, e);
            return part;
          };
          const auto put_back = [&](Rows<A>& to, Rows<A>& part, int64_t first, int64_t n) {
            for (int64_t r = 0; r < part.rows; ++r)
              for (int64_t e = 0; e < to.cols; ++e) to.at(r / n * s.q_len + first + r % n, e) = part.at(r, e);
          };
          const AttentionShape& part = y.c.shape;
          Rows<A> q_sums = slice(dq, part.first_query, part.q_len), k_sums = slice(dk, part.first_key, part.k_len),
                  v_sums = slice(dv, part.first_key, part.k_len);
          AttentionBackward op = y.backward_op();
          op.dq = q_sums.view(), op.dk = k_sums.view(), op.dv = v_sums.view();
          op.add_dq = op.add_dkv = true;
          run_with(set, op);
          put_back(dq, q_sums, part.first_query, part.q_len);
          put_back(dk, k_sums, part.first_key, part.k_len);
          put_back(dv, v_sums, part.first_key, part.k_len);
        }
      EXPECT_LE(relative_error(dq, expected.dq), bound<T>(1e-13, 64 * u, 2 * u));
      EXPECT_LE(relative_error(dk, expected.dk), bound<T>(1e-13, 64 * u, 2 * u));
      EXPECT_LE(relative_error(dv, expected.dv), bound<T>(1e-13, 64 * u, 2 * u));
    }
  }
}

TYPED_TEST(AttentionParts, AddWhatTheyWouldWrite) {
  using T = TypeParam;
  using A = AccumulatorOf<T>;
  Problem<T> x(Case{{2, 300, 300, 0, 4, 2, 40}, 0.2, 1, true, 70});
  for (const Panels& set : kernel_sets<T>())
    for (const bool queries : {false, true}) {  // the flags are independent of each other
      run_with(set, x.forward_op());
      run_with(set, x.backward_op());
      Problem<T> y = x;
      Rows<A> dq(x.q.rows, x.q.cols, true), dk(x.k.rows, x.k.cols, true), dv = dk;
      AttentionBackward op = y.backward_op();
      op.add_dq = queries;
      op.add_dkv = !queries;
      if (queries) op.dq = dq.view();
      if (!queries) op.dk = dk.view(), op.dv = dv.view();
      run_with(set, op);
      const auto expect_rounded = [&](Rows<A>& sums, const Rows<T>& expected, const char* name) {
        for (int64_t r = 0; r < sums.rows; ++r)
          for (int64_t e = 0; e < sums.cols; ++e)
            ASSERT_EQ(static_cast<double>(T(sums.at(r, e))), expected.value(r, e)) << name << " row " << r;
      };
      if (queries) {
        expect_rounded(dq, x.dq, "dq");
        EXPECT_TRUE(same_bits(y.dk, x.dk) && same_bits(y.dv, x.dv));
      } else {
        expect_rounded(dk, x.dk, "dk");
        expect_rounded(dv, x.dv, "dv");
        EXPECT_TRUE(same_bits(y.dq, x.dq));
      }
    }
}

TEST(AttentionPairs, AreCountedToThePair) {
  Draw draw{std::mt19937(3)};
  for (int i = 0; i < 200; ++i) {
    Problem<float> x(Case{{1, 60, 60, 0, 2, 1, 8}});
    x.c.window = draw.one_of(2) ? draw.between(1, 70) : 0;
    Problem<float> y = part_of(x, draw.part(x.c.shape));
    SCOPED_TRACE(to_string(y.c));
    int64_t pairs = 0;
    for (int64_t row = 0; row < y.c.shape.q_len; ++row) pairs += pairs_of(y, row);
    EXPECT_EQ(cost(y.forward_op()).flops, 4.0 * 8 * 2 * static_cast<double>(pairs));
    EXPECT_EQ(cost(y.backward_op()).flops, 10.0 * 8 * 2 * static_cast<double>(pairs));
  }
}

/// A problem of 2 sequences of 48 tokens, 4 heads and 2 key heads of size 4, given by sines.
Problem<double> golden_problem(int64_t window, bool documents) {
  Problem<double> x(Case{{2, 48, 48, 0, 4, 2, 4}, 0, 1, true, window});
  x.scale = 0.5;
  const auto fill = [](Rows<double>& rows, auto&& value) {
    for (int64_t r = 0; r < rows.rows; ++r)
      for (int64_t c = 0; c < rows.cols; ++c)
        rows.at(r, c) = value(static_cast<double>(r / 48), static_cast<double>(r % 48), static_cast<double>(c / 4),
                              static_cast<double>(c % 4));
  };
  using D = double;
  fill(x.q, [](D i, D p, D h, D d) { return std::sin(1 + 0.9 * i + 0.31 * p + 1.7 * h + 0.53 * d); });
  fill(x.k, [](D i, D p, D h, D d) { return 1.5 * std::cos(2 + 0.5 * i + 0.47 * p + 1.3 * h + 0.29 * d); });
  fill(x.v, [](D i, D p, D h, D d) { return std::sin(3 + 0.8 * i + 0.23 * p + 0.6 * h + 1.1 * d); });
  fill(x.dout, [](D i, D p, D h, D d) { return std::cos(4 + 0.4 * i + 0.19 * p + 0.35 * h + 0.77 * d); });
  for (int i = 0; i < 2 && documents; ++i)
    for (int p = 0; p < 48; ++p)
      x.first.push_back(p >= 31 + i ? 31 + i : p >= 20 + i ? 20 + i : p >= 5 + i ? 5 + i : 0);
  return x;
}

TEST(AttentionGolden, HasTheGoldenValuesInOneCallAndInARing) {
  SKIP_ON_CUDA("fp64");
  struct Golden {
    int64_t window;
    bool documents;
    int64_t i, p;
    double out, lse, dq, dk, dv;
  };
  const std::vector<Golden> golden = {
      {0, false, 0, 24, 0.065004161963845, 4.34481740458349, 0.000143003807049402, 0.0380946205816082,
       0.237303872346289},
      {0, false, 1, 47, 0.0853894918205268, 3.98854947417711, 0.046148024696613, 0.0196930162918604,
       -0.0253053403125455},
      {9, false, 0, 24, 0.320669575636963, 2.62155284566681, -0.0363321550483213, -0.122974649627827,
       0.824378490080755},
      {9, false, 1, 47, -0.313603170792011, 2.41054913985452, 0.437965983773992, 0.0405375446747086, -0.12215761616361},
      {0, true, 0, 24, -0.771427552428568, -0.0925586014758606, -0.0835576348129331, -0.0267874608198992,
       0.515460916920587}};
  Machine machine(2);
  for (const Golden& g : golden)
    for (const int64_t ranks :
         {0, 1, 2, 3, 4}) {  // 0: one call; else each has two segments, at equal distances from both ends
      SCOPED_TRACE(fmt::format("window {}, documents {}, {} ranks", g.window, g.documents, ranks));
      Problem<double> x = golden_problem(g.window, g.documents);
      if (ranks == 0) {
        x.forward(machine.ex);
        x.backward(machine.ex);
      }
      const int64_t n = 24 / std::max<int64_t>(1, ranks);
      const auto copy = [&](Rows<double>& to, int64_t to_length, int64_t at, Rows<double>& from, int64_t length,
                            int64_t first) {
        for (int64_t r = 0; r < 2 * n; ++r)
          for (int64_t c = 0; c < to.cols; ++c)
            to.at(r / n * to_length + at + r % n, c) = from.at(r / n * length + first + r % n, c);
      };
      const auto call = [&](int64_t q, int64_t k) {
        return part_of(x, {2, n, n, 0, 4, 2, 4, false, q * n, k * n, 48});
      };
      for (const bool backward : {false, true}) {
        if (backward && ranks > 0) x.dq = Rows<double>(96, 16, true), x.dk = x.dv = Rows<double>(96, 8, true);
        for (int64_t q = 0; q < 2 * ranks; ++q) {
          Rows<double> sum(2 * n, 16, false), sum_lse(8, n, false);
          for (int64_t step = 0; step < ranks; ++step) {
            const int64_t rank = std::min(q, 2 * ranks - 1 - q), of = (rank - step + ranks) % ranks;
            for (const int64_t k : {of, 2 * ranks - 1 - of}) {
              if (k > q) continue;
              Problem<double> y = call(q, k);
              if (!backward) {
                run(machine.ex, y.forward_op());
                run(machine.ex,
                    MergeAttention{y.out.view(), y.lse.view(), sum.view(), sum_lse.view(), 4, n, step == 0 && k == of});
                continue;
              }
              copy(y.dq, n, 0, x.dq, 48, q * n);
              copy(y.dk, n, 0, x.dk, 48, k * n);
              copy(y.dv, n, 0, x.dv, 48, k * n);
              AttentionBackward op = y.backward_op();
              op.add_dq = op.add_dkv = true;
              run(machine.ex, op);
              copy(x.dq, 48, q * n, y.dq, n, 0);
              copy(x.dk, 48, k * n, y.dk, n, 0);
              copy(x.dv, 48, k * n, y.dv, n, 0);
            }
          }
          if (backward) continue;
          copy(x.out, 48, q * n, sum, n, 0);
          for (int64_t r = 0; r < 8; ++r)
            for (int64_t i = 0; i < n; ++i) x.lse.at(r, q * n + i) = sum_lse.at(r, i);
        }
      }
      const int64_t row = g.i * 48 + g.p;
      EXPECT_NEAR(x.out.at(row, 4 + 2), g.out, 1e-12);
      EXPECT_NEAR(x.lse.at(g.i * 4 + 1, g.p), g.lse, 1e-12);
      EXPECT_NEAR(x.dq.at(row, 12 + 1), g.dq, 1e-12);
      EXPECT_NEAR(x.dk.at(row, 4), g.dk, 1e-12);
      EXPECT_NEAR(x.dv.at(row, 3), g.dv, 1e-12);
      if (g.window > 0 || g.documents) continue;
      const auto sum_of = [](Rows<double>& rows) {
        double sum = 0;
        for (int64_t r = 0; r < rows.rows; ++r)
          for (int64_t c = 0; c < rows.cols; ++c) sum += std::abs(rows.at(r, c));
        return sum;
      };
      EXPECT_NEAR(sum_of(x.dq), 95.717019636875, 1e-10);
      EXPECT_NEAR(sum_of(x.dk), 176.20200519575, 1e-10);
      EXPECT_NEAR(sum_of(x.dv), 414.11099743088, 1e-10);
    }
}

}  // namespace
}  // namespace trainer::ops::attention_test
