#include "ops/split_norm.h"

#include <cmath>

#include "ops/cpu/split_norm_kernels.h"
#include "ops/cuda/ops.h"
#include "ops/operands.h"
#include "ops/reduce.h"

namespace trainer::ops {
namespace {

const SplitNormKernels& split_norm_kernels(const Exec& ex) {
  return TRAINER_KERNELS(ex.device.isa(), split_norm_kernels);
}

/// Returns plane `plane` of [planes, N]. RMS norms have only the last one.
std::byte* plane_of(const Tensor& t, int64_t rows, bool center, int plane) {
  return center ? t.data + plane * rows * size_of(t.dtype) : plane == 0 ? nullptr : t.data;
}

template <typename A>
void merge(Exec& ex, const NormMerge& op) {
  const int64_t rows = op.rstd.count(), planes = norm_planes(op.center), ranks = op.all.count() / (planes * rows);
  const A *all = op.all.as<A>(), width = static_cast<A>(op.width), count = static_cast<A>(ranks * op.width);
  A *means = op.center ? op.mean.as<A>() : nullptr, *rstds = op.rstd.as<A>();
  for_elements(ex, rows, [&](int64_t first, int64_t n) {
    for (int64_t r = first; r < first + n; ++r) {
      A mean = 0, squares = 0;
      if (op.center) {
        for (int64_t k = 0; k < ranks; ++k) mean += all[k * planes * rows + r];
        mean /= static_cast<A>(ranks);
        means[r] = mean;
      }
      for (int64_t k = 0; k < ranks; ++k) {
        const A apart = op.center ? all[k * planes * rows + r] - mean : A(0);
        squares += all[(k * planes + planes - 1) * rows + r] + width * apart * apart;
      }
      rstds[r] = A(1) / std::sqrt(squares / count + static_cast<A>(op.eps));
    }
  });
}

/// Checks the operands that both halves of the backward pass have in common.
SplitGradient checked(const Tensor& dy, const Tensor& x, const Tensor& gain, const Tensor& mean, const Tensor& rstd,
                      const Tensor& sums, bool center, double gain_offset) {
  const int64_t rows = x.rows(), cols = x.cols();
  const DType type = accumulator_of(x.dtype);
  expect_rows(dy, rows, cols, x.dtype, "split norm dy");
  expect_count(gain, cols, x.dtype, "split norm gain");
  if (center) expect_count(mean, rows, type, "split norm mean");
  expect_count(rstd, rows, type, "split norm rstd");
  expect_count(sums, norm_planes(center) * rows, type, "split norm sums");
  SplitGradient args{};
  args.dy = dy.data;
  args.x = x.data;
  args.gain = gain.data;
  args.mean = center ? mean.data : nullptr;
  args.rstd = rstd.data;
  args.sums = plane_of(sums, rows, center, 0);
  args.products = plane_of(sums, rows, center, 1);
  args.dy_ld = dy.ld();
  args.x_ld = x.ld();
  args.cols = cols;
  args.shift = gain_shift(gain_offset);
  return args;
}

}  // namespace

void run(Exec& ex, const NormMoments& op) {
  const size_t type = kernel_index(op.x.dtype, "norm moments x");
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  expect_count(op.moments, norm_planes(op.center) * rows, accumulator_of(op.x.dtype), "norm moments");
  const OpTimer timer(ex.meter, OpKind::norm, {4.0 * static_cast<double>(op.x.count()), bytes_of(op.x)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const MomentRows args{op.x.data, plane_of(op.moments, rows, op.center, 0), plane_of(op.moments, rows, op.center, 1),
                        op.x.ld(), cols};
  const auto kernel = split_norm_kernels(ex).moments[type];
  for_row_blocks(ex, rows, rows_per_task(cols), [&](int64_t first, int64_t n) { kernel(args, first, n); });
}

void run(Exec& ex, const NormMerge& op) {
  const int64_t rows = op.rstd.count(), each = norm_planes(op.center) * rows;
  const DType type = op.rstd.dtype;
  TRAINER_CHECK(type == DType::f64 || type == DType::f32, "norm rstd is {}, expected fp64 or fp32", to_string(op.rstd));
  TRAINER_CHECK(op.width > 0 && (rows == 0 || op.all.count() % each == 0),
                "gathered moments are {}, expected a multiple of {} elements", to_string(op.all), each);
  expect_count(op.all, op.all.count(), type, "gathered moments");
  if (op.center) expect_count(op.mean, rows, type, "norm mean");
  const OpTimer timer(ex.meter, OpKind::norm, {4.0 * static_cast<double>(op.all.count()), bytes_of(op.all)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry() || rows == 0) return;
  type == DType::f64 ? merge<double>(ex, op) : merge<float>(ex, op);
}

void run(Exec& ex, const SplitNormSums& op) {
  const size_t type = kernel_index(op.x.dtype, "split norm x");
  const SplitGradient args = checked(op.dy, op.x, op.gain, op.mean, op.rstd, op.sums, op.center, op.gain_offset);
  const OpTimer timer(ex.meter, OpKind::norm, {6.0 * static_cast<double>(op.x.count()), bytes_of(op.x, 2)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = split_norm_kernels(ex).sums[type];
  for_row_blocks(ex, op.x.rows(), rows_per_task(args.cols), [&](int64_t first, int64_t n) { kernel(args, first, n); });
}

void run(Exec& ex, const SplitNormBackward& op) {
  const size_t type = kernel_index(op.x.dtype, "split norm x");
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  const DType sums = accumulator_of(op.x.dtype);
  SplitGradient args = checked(op.dy, op.x, op.gain, op.mean, op.rstd, op.sums, op.center, op.gain_offset);
  expect_rows(op.dx, rows, cols, op.x.dtype, "split norm dx");
  if (op.residual) expect_rows(op.residual, rows, cols, op.x.dtype, "split norm residual");
  expect_count(op.dgain, cols, sums, "split norm dgain");
  if (op.dbias) expect_count(op.dbias, cols, sums, "split norm dbias");
  TRAINER_CHECK(op.hidden >= cols, "split norm: {} columns exceed a hidden dimension of {}", cols, op.hidden);
  const OpTimer timer(ex.meter, OpKind::norm,
                      {12.0 * static_cast<double>(op.x.count()), bytes_of(op.x, op.residual ? 4 : 3)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  const int64_t block = reduction_rows(rows), blocks = divide_up(rows, block);
  const Scratch gain_sums = ex.take("norm.gain_sums", {blocks, cols}, sums);
  Scratch bias_sums;
  if (op.dbias) bias_sums = ex.take("norm.bias_sums", {blocks, cols}, sums);
  if (ex.device.dry()) return;
  args.residual = op.residual.data;
  args.residual_ld = op.residual.ld();
  args.dx = op.dx.data;
  args.dx_ld = op.dx.ld();
  args.hidden = op.hidden;
  const auto kernel = split_norm_kernels(ex).backward[type];
  for_row_blocks(ex, rows, block, [&](int64_t first, int64_t n) {
    std::byte* bias_sum = op.dbias ? row_at(bias_sums, first / block) : nullptr;
    kernel(args, first, n, row_at(gain_sums, first / block), bias_sum);
  });
  sum_partials(ex, gain_sums, op.dgain, op.accumulate_gain);
  if (op.dbias) sum_partials(ex, bias_sums, op.dbias, op.accumulate_bias);
}

}  // namespace trainer::ops
