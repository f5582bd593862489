#pragma once
// Random attention problems with a reference in double precision that keeps the whole matrix of scores.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ops/attention.h"
#include "ops/elementwise.h"
#include "unit/ops/test_device.h"

namespace trainer::ops::attention_test {

using testing::Machine;
using testing::TestExec;

template <typename T>
double unit_roundoff() {
  return std::is_same_v<T, bf16> ? 0x1p-8 : std::numeric_limits<AccumulatorOf<T>>::epsilon() / 2;
}

/// A strided matrix: [rows, cols] inside rows of `pitch`, as q, k and v are in the result of their GEMM.
template <typename T>
struct Rows {
  int64_t rows = 0, cols = 0, pitch = 0, before = 0;
  std::vector<T> data;

  Rows(int64_t rows_, int64_t cols_, bool spread, double fill = 0)
      : rows(rows_),
        cols(cols_),
        pitch(spread ? cols_ + 7 : cols_),
        before(spread ? 3 : 0),
        data(static_cast<size_t>(rows_ * pitch), T(static_cast<AccumulatorOf<T>>(fill))) {}
  T& at(int64_t r, int64_t c) { return data[static_cast<size_t>(r * pitch + before + c)]; }
  double value(int64_t r, int64_t c) const {
    return static_cast<double>(data[static_cast<size_t>(r * pitch + before + c)]);
  }
  Tensor view() {
    return Tensor{reinterpret_cast<std::byte*>(data.data()), {rows, pitch}, DTypeOf<T>::value}.col_range(before, cols);
  }
  void draw(std::mt19937& rng, double deviation) {
    std::normal_distribution<double> normal(0, deviation);
    for (T& x : data) x = T(static_cast<AccumulatorOf<T>>(normal(rng)));
  }
};

struct Case {
  AttentionShape shape;
  double dropout = 0;
  double deviation = 1;
  bool spread = true;
  int64_t window = 0;
  double documents = 0;  // the probability that a row begins a document; 0: no document mask
};
inline std::string to_string(const Case& c) {
  const AttentionShape& s = c.shape;
  return fmt::format(
      "batch {}, {} queries from {}, {} keys from {} (room {}), heads {}/{}, head size {}, dropout {}, window {}, "
      "documents {}",
      s.batch, s.q_len, s.first_query, s.k_len, s.first_key, s.k_capacity, s.heads, s.kv_heads, s.head_dim, c.dropout,
      c.window, c.documents);
}
inline int64_t capacity(const AttentionShape& s) { return s.capacity(); }

/// Operands and results of one case. If its first query is 0, the last query is at the position of the last key.
template <typename T>
struct Problem {
  Case c;
  Rows<T> q, k, v, out, dout, dq, dk, dv;
  Rows<AccumulatorOf<T>> lse;
  AttentionDropout dropout;
  std::vector<int32_t> first;  // each row's first visible key, given the documents
  double scale;

  explicit Problem(const Case& which, unsigned seed = 1)
      : c(which),
        q(c.shape.batch * c.shape.q_len, c.shape.heads * c.shape.head_dim, c.spread),
        k(c.shape.batch * capacity(c.shape), c.shape.kv_heads * c.shape.head_dim, c.spread),
        v(k),
        out(q),
        dout(q),
        dq(q),
        dk(k),
        dv(k),
        lse(c.shape.batch * c.shape.heads, c.shape.q_len, false),
        scale(0.9 / std::sqrt(static_cast<double>(c.shape.head_dim))) {
    if (c.shape.first_query == 0) c.shape.first_query = c.shape.first_key + c.shape.k_len - c.shape.q_len;
    std::mt19937 rng(seed);
    q.draw(rng, c.deviation);
    k.draw(rng, c.deviation);
    v.draw(rng, 1);
    dout.draw(rng, 1);
    dropout = {c.dropout, philox_key(seed, "attention"), 3, 5, 2, c.shape.heads + 4};
    if (c.documents <= 0) return;
    std::uniform_real_distribution<double> uniform;
    for (int64_t b = 0; b < c.shape.batch; ++b) {
      int64_t start = 0;
      for (int64_t i = 0; i < c.shape.q_len; ++i) {
        if (uniform(rng) < c.documents) start = c.shape.first_query + i;
        first.push_back(static_cast<int32_t>(start));
      }
    }
  }
  AttentionMask mask() {
    Tensor view;
    if (!first.empty())
      view = {reinterpret_cast<std::byte*>(first.data()), {static_cast<int64_t>(first.size())}, DType::i32};
    return {c.window, view};
  }
  /// Returns the index of the first key that a row sees.
  int64_t first_key(int64_t row) const {
    const int64_t own = first.empty() ? 0 : std::max<int64_t>(0, first[static_cast<size_t>(row)] - c.shape.first_key);
    return c.window == 0 ? own : std::max(own, c.shape.earlier() + row % c.shape.q_len - c.window + 1);
  }
  AttentionForward forward_op(bool keep_lse = true) {
    return {q.view(), k.view(), v.view(), out.view(), keep_lse ? lse.view() : Tensor{},
            c.shape,  scale,    dropout,  mask()};
  }
  AttentionBackward backward_op() { return {forward_op(), dout.view(), dq.view(), dk.view(), dv.view()}; }
  void forward(TestExec& ex, bool keep_lse = true) { run(ex, forward_op(keep_lse)); }
  void backward(TestExec& ex) { run(ex, backward_op()); }
};

template <typename T>
bool same_bits(const Rows<T>& a, const Rows<T>& b) {
  return std::memcmp(a.data.data(), b.data.data(), a.data.size() * sizeof(T)) == 0;
}
template <typename T>
void expect_same_bits(const Problem<T>& a, const Problem<T>& b) {
  EXPECT_TRUE(same_bits(a.out, b.out));
  EXPECT_TRUE(same_bits(a.lse, b.lse));
  EXPECT_TRUE(same_bits(a.dq, b.dq));
  EXPECT_TRUE(same_bits(a.dk, b.dk));
  EXPECT_TRUE(same_bits(a.dv, b.dv));
}
/// Returns keys or values of x by head, as in a cache on a CPU, with or without gaps between the rows.
template <typename T>
Rows<T> by_head(const Problem<T>& x, const Rows<T>& keys, bool spread) {
  const AttentionShape& s = x.c.shape;
  const int64_t room = capacity(s);
  Rows<T> heads(s.batch * s.kv_heads * room, s.head_dim, spread);
  for (int64_t row = 0; row < heads.rows; ++row)
    for (int64_t e = 0; e < s.head_dim; ++e)
      heads.at(row, e) = T(static_cast<AccumulatorOf<T>>(
          keys.value(row / room / s.kv_heads * room + row % room, row / room % s.kv_heads * s.head_dim + e)));
  return heads;
}
/// Expects `forward` to compute the same bits as x has when keys and values are by head. `forward` gets the operands.
template <typename T, typename F>
void expect_same_bits_by_head(const Problem<T>& x, F&& forward) {
  Problem<T> y = x;
  y.k = by_head(x, x.k, x.c.spread);
  y.v = by_head(x, x.v, false);
  y.c.shape.by_head = true;
  y.out = Rows<T>(x.out.rows, x.out.cols, x.c.spread);
  y.lse = Rows<AccumulatorOf<T>>(x.lse.rows, x.lse.cols, false);
  forward(y.forward_op());
  for (int64_t r = 0; r < x.out.rows; ++r) {
    for (int64_t e = 0; e < x.out.cols; ++e) ASSERT_EQ(y.out.value(r, e), x.out.value(r, e)) << "row " << r;
  }
  EXPECT_TRUE(same_bits(x.lse, y.lse));
}
/// Checks results that very large scores could make infinite; outputs are means of values.
template <typename T>
void expect_bounded(const Problem<T>& x) {
  for (const auto* each : {&x.out, &x.dq, &x.dk, &x.dv})
    for (int64_t r = 0; r < each->rows; ++r)
      for (int64_t e = 0; e < each->cols; ++e) {
        ASSERT_TRUE(std::isfinite(each->value(r, e)));
        if (each == &x.out) {
          ASSERT_LE(std::abs(each->value(r, e)), 6);
        }
      }
}
/// Sets an element of key `bad` to NaN. Its row and those that follow see it.
template <typename T>
void spoil(Problem<T>& x, int64_t bad) {
  x.k.at(bad, 4) = T(std::numeric_limits<AccumulatorOf<T>>::quiet_NaN());
}
template <typename T>
void expect_nan_from(const Problem<T>& x, int64_t bad) {
  for (int64_t r = 0; r < x.out.rows; ++r)
    for (int64_t e = 0; e < x.out.cols; ++e) ASSERT_EQ(std::isnan(x.out.value(r, e)), r >= bad) << "row " << r;
}

using Matrix = std::vector<double>;

/// Some of the queries and keys of each sequence, by their index in the problem.
struct Part {
  int64_t first_query = 0, end_query = std::numeric_limits<int64_t>::max();
  int64_t first_key = 0, end_key = std::numeric_limits<int64_t>::max();
};

/// Attention by its definition, in double: explicit rows of probabilities; gradients by the chain rule through them.
/// Of gradients, only the contributions of the pairs in `part`.
template <typename T>
struct Reference {
  Matrix out, lse, dq, dk, dv;

  explicit Reference(const Problem<T>& x, bool gradients = true, const Part& part = {}) {
    const AttentionShape& s = x.c.shape;
    const int64_t d = s.head_dim, group = s.heads / s.kv_heads, room = capacity(s);
    out.assign(static_cast<size_t>(x.q.rows * x.q.cols), 0);
    dq = out;
    dk.assign(static_cast<size_t>(x.k.rows * x.k.cols), 0);
    dv = dk;
    lse.assign(static_cast<size_t>(s.batch * s.heads * s.q_len), 0);
    const double kept = 1 / (1 - x.c.dropout);
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t h = 0; h < s.heads; ++h) {
        const int64_t hk = h / group * d;
        for (int64_t i = 0; i < s.q_len; ++i) {
          const int64_t row = b * s.q_len + i;
          const int64_t end = std::clamp<int64_t>(s.earlier() + i + 1, 0, s.k_len);
          Matrix p(static_cast<size_t>(end)), mask(p.size(), 1.0), dp(p.size());
          double top = -std::numeric_limits<double>::infinity(), sum = 0;
          const int64_t seen_from = std::min(x.first_key(row), end);
          lse[(b * s.heads + h) * s.q_len + i] = top;
          if (seen_from == end) continue;
          for (int64_t j = 0; j < seen_from; ++j) p[j] = -std::numeric_limits<double>::infinity();
          for (int64_t j = seen_from; j < end; ++j) {
            for (int64_t e = 0; e < d; ++e) p[j] += x.q.value(row, h * d + e) * x.k.value(b * room + j, hk + e);
            p[j] *= x.scale;
            top = std::max(top, p[j]);
          }
          for (double& value : p) sum += value = std::exp(value - top);
          for (double& value : p) value /= sum;
          lse[(b * s.heads + h) * s.q_len + i] = top + std::log(sum);
          if (x.c.dropout > 0) {
            const auto global =
                static_cast<uint64_t>((x.dropout.first_sample + b) * x.dropout.heads_global + x.dropout.first_head + h);
            const auto length = static_cast<uint64_t>(s.length == 0 ? s.first_query + s.q_len : s.length);
            for (int64_t j = 0; j < end; ++j) {
              const uint64_t index =
                  (global * length + static_cast<uint64_t>(s.first_query + i)) * length + s.first_key + j;
              const uint32_t u = philox_at(x.dropout.key, index, x.dropout.step);
              mask[j] = u >= dropout_threshold(x.c.dropout) ? kept : 0;
            }
          }
          double inner = 0;
          for (int64_t j = 0; j < end; ++j) {
            for (int64_t e = 0; e < d; ++e) {
              out[row * x.q.cols + h * d + e] += p[j] * mask[j] * x.v.value(b * room + j, hk + e);
              dp[j] += mask[j] * x.dout.value(row, h * d + e) * x.v.value(b * room + j, hk + e);
            }
            inner += p[j] * dp[j];
          }
          if (!gradients || i < part.first_query || i >= part.end_query) continue;
          for (int64_t j = part.first_key; j < std::min(end, part.end_key); ++j) {
            const double ds = x.scale * p[j] * (dp[j] - inner);
            for (int64_t e = 0; e < d; ++e) {
              dq[row * x.q.cols + h * d + e] += ds * x.k.value(b * room + j, hk + e);
              dk[(b * room + j) * x.k.cols + hk + e] += ds * x.q.value(row, h * d + e);
              dv[(b * room + j) * x.k.cols + hk + e] += p[j] * mask[j] * x.dout.value(row, h * d + e);
            }
          }
        }
      }
    }
  }
};

/// Returns the bound for type T.
template <typename T>
double bound(double f64, double f32, double bf16_bound) {
  return std::is_same_v<T, double> ? f64 : std::is_same_v<T, float> ? f32 : bf16_bound;
}
/// |got − expected| / |expected| over the whole tensor. Infinite values must be equal.
template <typename T>
double relative_error(const Rows<T>& got, const Matrix& expected) {
  double difference = 0, norm = 0;
  for (int64_t r = 0; r < got.rows; ++r) {
    for (int64_t c = 0; c < got.cols; ++c) {
      const double e = expected[static_cast<size_t>(r * got.cols + c)], g = got.value(r, c);
      if (g != e) difference += (g - e) * (g - e);
      if (std::isfinite(e)) norm += e * e;
    }
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}
/// Expects the gaps between the rows to be unchanged.
template <typename T>
void expect_margins_untouched(const Rows<T>& before, const Rows<T>& after, const char* name) {
  for (int64_t r = 0; r < after.rows; ++r)
    for (int64_t c = 0; c < after.pitch; ++c)
      if (c < after.before || c >= after.before + after.cols) {
        const auto i = static_cast<size_t>(r * after.pitch + c);
        ASSERT_EQ(0, std::memcmp(&before.data[i], &after.data[i], sizeof(T)))
            << name << " row " << r << " column " << c;
      }
}

/// Expects the results of both passes to be close, and nothing to be written between the rows of `before`.
template <typename T>
void expect_close(const Case& c, const Problem<T>& before, const Problem<T>& x, double forward, double lse,
                  double backward) {
  const Reference<T> expected(before);
  EXPECT_LE(relative_error(x.out, expected.out), forward);
  EXPECT_LE(relative_error(x.lse, expected.lse), lse);
  EXPECT_LE(relative_error(x.dv, expected.dv), backward);
  if (c.shape.k_len > 1 && c.window != 1) {  // with one key, its probability is 1: dq and dk are rounding errors
    EXPECT_LE(relative_error(x.dq, expected.dq), backward);
    EXPECT_LE(relative_error(x.dk, expected.dk), backward);
  }
  expect_margins_untouched(before.out, x.out, "out");
  expect_margins_untouched(before.dq, x.dq, "dq");
  expect_margins_untouched(before.dk, x.dk, "dk");
  expect_margins_untouched(before.dv, x.dv, "dv");
}

}  // namespace trainer::ops::attention_test
