#include "ops/rope.h"

#include <cmath>

#include "base/philox.h"
#include "ops/cpu/rope_kernels.h"
#include "ops/cuda/ops.h"
#include "ops/operands.h"

namespace trainer::ops {
namespace {

/// An unevaluated sum high + low, |low| <= ulp(high)/2: about 106 bits from only + − × fma (Dekker 1971).
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

/// r = theta^(−1/n), the ratio of neighbouring frequencies: Newton's method on r^n·theta = 1, the last steps in
/// Double2. From 1 it descends to the root, by a factor of about (1 − 1/n) per step while far away.
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

template <typename T>
void fill_rows(const Tensor& table, double theta) {
  const int64_t half = table.cols() / 2;
  const Double2 ratio = frequency_ratio(theta, half);
  Double2 turns{0.15915494309189535, -9.839338337591243e-18};  // per position: 1/(2π)·theta^(−i/half), i = 0
  for (int64_t i = 0; i < half; ++i, turns = product(turns, ratio)) {
    for (int64_t position = 0; position < table.rows(); ++position) {
      const auto x = static_cast<double>(position);
      const double high = x * turns.high;
      double part = (high - std::floor(high)) + (std::fma(x, turns.high, -high) + x * turns.low);
      part -= std::floor(part);
      const SinCos angle = portable_sincos_2pi(part);
      T* row = table.as<T>() + position * table.ld();
      row[i] = static_cast<T>(angle.cos);
      row[half + i] = static_cast<T>(angle.sin);
    }
  }
}

}  // namespace

void fill_rope_table(const Tensor& table, double theta) {
  TRAINER_CHECK(table.shape.dims() == 2 && table.cols() % 2 == 0, "a rotary table is {}, expected [positions, even]",
                to_string(table));
  TRAINER_CHECK(theta >= 1, "rotary base {}, expected at least 1", theta);
  if (table.data == nullptr) return;  // dry device
  switch (table.dtype) {
    case DType::f64:
      return fill_rows<double>(table, theta);
    case DType::f32:
      return fill_rows<float>(table, theta);
    default:
      TRAINER_CHECK(false, "a rotary table is {}, expected fp64 or fp32", to_string(table));
  }
}

void run(Exec& ex, const Rope& op) {
  const size_t type = kernel_index(op.x.dtype, "rotary x");
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  TRAINER_CHECK(op.head_dim > 0 && op.head_dim % 2 == 0 && cols % op.head_dim == 0,
                "rotary embedding of {} columns with head size {}: expected whole heads of even size", cols,
                op.head_dim);
  TRAINER_CHECK(op.rows_per_sequence > 0 && op.first_position >= 0 &&
                    op.first_position + std::min(rows, op.rows_per_sequence) <= op.table.rows(),
                "rotary positions {} to {} of a table of {}", op.first_position,
                op.first_position + op.rows_per_sequence, op.table.rows());
  expect_rows(op.table, op.table.rows(), op.head_dim, accumulator_of(op.x.dtype), "rotary table");
  const auto count = static_cast<double>(op.x.count());
  const OpTimer timer(ex.meter, OpKind::rope, {3 * count, 2 * static_cast<double>(op.x.bytes())});
  if (ex.device.kind() == device::Kind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto rotate = TRAINER_KERNELS(ex.device.isa(), rope_kernels).rotate[type];
  for_row_blocks(ex, rows, rows_per_task(cols), [&](int64_t first, int64_t n) {
    rotate({row_at(op.x, first), op.x.ld(), n, cols / op.head_dim, op.head_dim, op.table.data, op.table.ld(), first,
            op.rows_per_sequence, op.first_position, op.inverse});
  });
}

}  // namespace trainer::ops
