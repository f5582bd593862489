#include "ops/rope.h"

#include <algorithm>
#include <cmath>

#include "base/philox.h"
#include "ops/cpu/rope_kernels.h"
#include "ops/cuda/ops.h"
#include "ops/operands.h"

namespace trainer::ops {
namespace {

/// An unevaluated sum high + low, |low| <= ulp(high)/2: about 106 bits, with only + − × and fma (Dekker 1971).
struct Double2 {
  double high, low;
};
Double2 fast_sum(double a, double b) {  // |a| >= |b|
  const double sum = a + b;
  return {sum, b - (sum - a)};
}
Double2 product(Double2 a, Double2 b) {
  const double high = a.high * b.high;
  return fast_sum(high, std::fma(a.high, b.high, -high) + (a.high * b.low + a.low * b.high));
}
Double2 power(Double2 x, int64_t n) {
  Double2 result{1, 0};
  for (; n > 0; n /= 2, x = product(x, x))
    if (n % 2 == 1) result = product(result, x);
  return result;
}

/// Returns theta^(−1/n), the ratio of adjacent frequencies, by Newton's method on r^n·theta = 1. The iteration descends
/// from 1 to the root, at first by a factor of about 1 − 1/n per step.
Double2 frequency_ratio(double theta, int64_t n) {
  Double2 r{1, 0};
  double step = 0;
  do {  // r <- r·(1 − e/n), e = (r^n·theta − 1)/(r^n·theta): the Newton step of r^n = 1/theta
    const Double2 p = product(power(r, n), {theta, 0});
    const double error = (p.high - 1) + p.low;
    step = error / (p.high * static_cast<double>(n));
    const double change = -r.high * step, low = r.low - r.low * step;
    const double sum = r.high + change;
    r = fast_sum(sum, (r.high - sum) + change + low);
  } while (std::fabs(step) > 1e-18);
  return r;
}

constexpr double kTurn = 6.283185307179586;  // 2π

/// The beginning and end of YaRN's ramp, as indices of pairs.
struct Ramp {
  double first = 0, last = 0;
};
Ramp yarn_ramp(int64_t rotary, double theta, const RopeScaling& s) {
  const auto width = static_cast<double>(rotary);
  const auto place = [&](double turns) {
    return width * portable_log(s.original / (kTurn * turns)) / (2 * portable_log(theta));
  };
  Ramp ramp{place(s.beta_fast), place(s.beta_slow)};
  if (s.truncate) ramp = {std::floor(ramp.first), std::ceil(ramp.last)};
  ramp = {std::max(ramp.first, 0.0), std::min(ramp.last, width - 1)};
  if (ramp.first == ramp.last) ramp.last += 0.001;
  return ramp;
}

/// Returns the turns per position of each pair, f/2π.
std::vector<Double2> turns_of_pairs(int64_t rotary, double theta, const RopeScaling& s) {
  using Kind = RopeScaling::Kind;
  const int64_t half = rotary / 2;
  const Double2 ratio = frequency_ratio(theta, half);
  const Ramp ramp = s.kind == Kind::yarn ? yarn_ramp(rotary, theta, s) : Ramp{};
  std::vector<Double2> all;
  Double2 turns{0.15915494309189535, -9.839338337591243e-18};  // 1/(2π)·theta^(−i/half), i = 0
  for (int64_t i = 0; i < half; ++i, turns = product(turns, ratio)) {
    double kept = s.kind == Kind::none ? 1 : 0;  // share of the frequency that is not divided
    if (s.kind == Kind::llama3)
      kept = std::clamp((s.original * turns.high - s.low_freq) / (s.high_freq - s.low_freq), 0.0, 1.0);
    if (s.kind == Kind::yarn)
      kept = 1 - std::clamp((static_cast<double>(i) - ramp.first) / (ramp.last - ramp.first), 0.0, 1.0);
    all.push_back(kept == 1 ? turns : product(turns, {kept + (1 - kept) / s.factor, 0}));
  }
  return all;
}

template <typename T>
void fill_rows(const Tensor& table, double theta, const RopeScaling& scaling) {
  const int64_t half = table.cols() / 2;
  const std::vector<Double2> all = turns_of_pairs(table.cols(), theta, scaling);
  const double magnitude = rope_magnitude(scaling);
  for (int64_t i = 0; i < half; ++i) {
    const Double2 turns = all[static_cast<size_t>(i)];
    for (int64_t position = 0; position < table.rows(); ++position) {
      const auto x = static_cast<double>(position);
      const double high = x * turns.high;
      double part = (high - std::floor(high)) + (std::fma(x, turns.high, -high) + x * turns.low);
      part -= std::floor(part);
      const SinCos angle = portable_sincos_2pi(part);
      T* row = table.as<T>() + position * table.ld();
      row[i] = static_cast<T>(magnitude * angle.cos);
      row[half + i] = static_cast<T>(magnitude * angle.sin);
    }
  }
}

}  // namespace

double rope_magnitude(const RopeScaling& s) {
  if (s.kind != RopeScaling::Kind::yarn) return 1;
  if (s.attention > 0) return s.attention;
  return s.factor > 1 ? std::fma(0.1, portable_log(s.factor), 1.0) : 1;
}

std::vector<double> rope_frequencies(int64_t rotary, double theta, const RopeScaling& scaling) {
  std::vector<double> all;
  for (const Double2 turns : turns_of_pairs(rotary, theta, scaling))
    all.push_back(product(turns, {kTurn, 2.4492935982947064e-16}).high);
  return all;
}

void fill_rope_table(const Tensor& table, double theta, const RopeScaling& scaling) {
  TRAINER_CHECK(table.shape.dims() == 2 && table.cols() % 2 == 0,
                "a rotary table is {}, expected an even number of columns", to_string(table));
  TRAINER_CHECK(theta >= 1, "rotary base {}, expected at least 1", theta);
  TRAINER_CHECK(scaling.kind == RopeScaling::Kind::none || scaling.factor >= 1,
                "rotary scaling factor {}, expected at least 1", scaling.factor);
  if (table.data == nullptr) return;  // dry device
  switch (table.dtype) {
    case DType::f64:
      return fill_rows<double>(table, theta, scaling);
    case DType::f32:
      return fill_rows<float>(table, theta, scaling);
    default:
      TRAINER_CHECK(false, "a rotary table is {}, expected fp64 or fp32", to_string(table));
  }
}

void run(Exec& ex, const Rope& op) {
  const size_t type = kernel_index(op.x.dtype, "rotary x");
  const int64_t rows = op.x.rows(), cols = op.x.cols(), rotary = op.table.cols();
  TRAINER_CHECK(op.head_dim > 0 && cols % op.head_dim == 0 && rotary % 2 == 0 && rotary <= op.head_dim,
                "rotary embedding of {} columns, {} of each head of {}: expected whole heads and an even number", cols,
                rotary, op.head_dim);
  if (op.position_ids)
    expect_places(ex, op.position_ids, rows, op.table.rows(), "rotary positions");
  else
    TRAINER_CHECK(op.rows_per_sequence > 0 && op.first_position >= 0 &&
                      op.first_position + std::min(rows, op.rows_per_sequence) <= op.table.rows(),
                  "rotary positions {} to {} exceed a table of {}", op.first_position,
                  op.first_position + op.rows_per_sequence, op.table.rows());
  expect_rows(op.table, op.table.rows(), rotary, accumulator_of(op.x.dtype), "rotary table");
  const auto count = static_cast<double>(rows * (cols / op.head_dim) * rotary);
  const OpTimer timer(ex.meter, OpKind::rope, {3 * count, 2 * count * static_cast<double>(size_of(op.x.dtype))});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto rotate = TRAINER_KERNELS(ex.device.isa(), rope_kernels).rotate[type];
  for_row_blocks(ex, rows, rows_per_task(cols), [&](int64_t first, int64_t n) {
    rotate({row_at(op.x, first), op.x.ld(), n, cols / op.head_dim, op.head_dim, rotary, op.table.data, op.table.ld(),
            first, op.rows_per_sequence, op.first_position,
            op.position_ids ? op.position_ids.as<int32_t>() + first : nullptr, op.inverse});
  });
}

}  // namespace trainer::ops
