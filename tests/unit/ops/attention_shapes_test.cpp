// Attention at the head sizes and lengths at which kernels change their tiles, with operands aligned to 16 bytes
// (attention_test.cpp has unaligned ones), and its dropout masks element by element.
#include "unit/ops/attention_problem.h"

namespace trainer::ops::attention_test {
namespace {

template <typename T>
class AttentionShapes : public testing::DeviceTest {};
using Types = ::testing::Types<float, bf16>;
TYPED_TEST_SUITE(AttentionShapes, Types);

TYPED_TEST(AttentionShapes, MatchItsDefinition) {
  using T = TypeParam;
  Machine machine(2);
  const double u = unit_roundoff<T>();
  const auto check = [&](int64_t length, int64_t heads, int64_t kv_heads, int64_t head_dim, double dropout,
                         int64_t window = 0, double documents = 0) {
    const Case c{{1, length, length, 0, heads, kv_heads, head_dim}, dropout, 1, false, window, documents};
    SCOPED_TRACE(to_string(c));
    Problem<T> x(c, static_cast<unsigned>(length + head_dim));
    x.forward(machine.ex);
    x.backward(machine.ex);
    const Reference<T> expected(x);
    const double forward = bound<T>(0, 32 * u, u), backward = bound<T>(0, 64 * u, 2 * u);
    EXPECT_LE(relative_error(x.out, expected.out), forward);
    EXPECT_LE(relative_error(x.lse, expected.lse), 1e-5);
    EXPECT_LE(relative_error(x.dv, expected.dv), backward);
    if (length == 1) return;  // one key, of probability 1: dq and dk are rounding errors
    EXPECT_LE(relative_error(x.dq, expected.dq), backward);
    EXPECT_LE(relative_error(x.dk, expected.dk), backward);
  };
  for (const int64_t head_dim : {16, 40, 64, 80, 96, 128, 160, 256}) {
    for (const int64_t length : {1, 63, 64, 65}) check(length, 1, 1, head_dim, 0);
    check(130, 4, 2, head_dim, head_dim % 64 == 0 ? 0.3 : 0.0);
    check(132, 1, 1, head_dim, head_dim % 64 == 0 ? 0.0 : 0.3);
    check(140, 2, 1, head_dim, head_dim % 64 == 0 ? 0.2 : 0.0, 33, 0.03);
  }
  check(300, 2, 1, 64, 0, 40);
  check(300, 1, 1, 128, 0, 0, 0.02);
  check(264, 2, 1, 32, 0.2, 130, 0.01);
  for (const double dropout : {0.0, 0.3}) check(264, 3, 1, 64, dropout);
  check(200, 2, 1, 128, 0.3);
}

TYPED_TEST(AttentionShapes, GiveTheSameBitsInEveryOrderAndPlace) {
  using T = TypeParam;
  const int64_t batch = 2, length = 136, heads = 2, kv_heads = 1, d = 64;
  for (const double dropout : {0.0, 0.2}) {
    const Case c{{batch, length, length, 0, heads, kv_heads, d}, dropout, 1, false};
    SCOPED_TRACE(to_string(c));
    std::vector<Problem<T>> runs;
    testing::for_each_order([&] {
      Machine machine(2);
      runs.emplace_back(c);
      runs.back().forward(machine.ex);
      runs.back().backward(machine.ex);
      expect_same_bits(runs[0], runs.back());
    });
    // q, k and v side by side in the rows of one GEMM's result, once aligned to 16 bytes and once not.
    for (const int64_t shift : {int64_t{0}, int64_t{1}}) {
      const int64_t q_cols = heads * d, k_cols = kv_heads * d, pitch = q_cols + 2 * k_cols + 16 * shift;
      Rows<T> packed(batch * length, pitch, false), gradients = packed;
      Problem<T>& first = runs[0];
      const auto place = [&](Rows<T>& from, int64_t column) {
        for (int64_t r = 0; r < from.rows; ++r)
          for (int64_t e = 0; e < from.cols; ++e) packed.at(r, column + e) = from.at(r, e);
      };
      const int64_t q_at = shift, k_at = q_at + q_cols, v_at = k_at + k_cols;
      place(first.q, q_at);
      place(first.k, k_at);
      place(first.v, v_at);
      Machine machine(1);
      Problem<T> x(c);
      const auto part = [&](Rows<T>& rows, int64_t at, int64_t cols) { return rows.view().col_range(at, cols); };
      const Tensor q = part(packed, q_at, q_cols), k = part(packed, k_at, k_cols), v = part(packed, v_at, k_cols);
      const AttentionForward forward{q, k, v, x.out.view(), x.lse.view(), c.shape, x.scale, x.dropout};
      run(machine.ex, forward);
      run(machine.ex, AttentionBackward{forward, x.dout.view(), part(gradients, q_at, q_cols),
                                        part(gradients, k_at, k_cols), part(gradients, v_at, k_cols)});
      EXPECT_TRUE(same_bits(first.out, x.out)) << "shift " << shift;
      const auto equals = [&](Rows<T>& expected, int64_t column) {
        for (int64_t r = 0; r < expected.rows; ++r)
          for (int64_t e = 0; e < expected.cols; ++e)
            if (std::memcmp(&expected.at(r, e), &gradients.at(r, column + e), sizeof(T)) != 0) return false;
        return true;
      };
      EXPECT_TRUE(equals(first.dq, q_at)) << "shift " << shift;
      EXPECT_TRUE(equals(first.dk, k_at)) << "shift " << shift;
      EXPECT_TRUE(equals(first.dv, v_at)) << "shift " << shift;
    }
  }
}

TYPED_TEST(AttentionShapes, DropTheElementsTheirDrawsName) {
  using T = TypeParam;
  // Equal scores, and one-hot rows in v and dout: an output is a probability after dropout, 1/(row + 1) if kept.
  for (const int64_t length : {64, 61, 128}) {
    for (const double p : {0.1, 0.5}) {
      const int64_t d = length, heads = 2;
      const Case c{{2, length, length, 0, heads, heads, d}, p, 1, false};
      SCOPED_TRACE(to_string(c));
      Problem<T> x(c);
      for (T& value : x.k.data) value = T(0.0f);
      for (int64_t r = 0; r < x.v.rows; ++r) {
        for (int64_t e = 0; e < x.v.cols; ++e) {
          x.v.at(r, e) = T(e % d == r % length ? 1.0f : 0.0f);
          x.dout.at(r, e) = x.v.at(r, e);
        }
      }
      Machine machine(2);
      x.forward(machine.ex);
      x.backward(machine.ex);
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t h = 0; h < heads; ++h) {
          const auto global =
              static_cast<uint64_t>((x.dropout.first_sample + b) * x.dropout.heads_global + x.dropout.first_head + h);
          for (int64_t q = 0; q < length; ++q) {
            for (int64_t k = 0; k <= q; ++k) {
              const uint64_t index =
                  (global * static_cast<uint64_t>(length) + static_cast<uint64_t>(q)) * static_cast<uint64_t>(length) +
                  static_cast<uint64_t>(k);
              const bool kept = philox_at(x.dropout.key, index, x.dropout.step) >= dropout_threshold(p);
              ASSERT_EQ(x.out.value(b * length + q, h * d + k) != 0, kept) << "query " << q << " key " << k;
              ASSERT_EQ(x.dv.value(b * length + k, h * d + q) != 0, kept) << "query " << q << " key " << k;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace trainer::ops::attention_test
