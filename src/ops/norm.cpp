#include "ops/norm.h"

#include "ops/cpu/norm_kernels.h"
#include "ops/cuda/ops.h"
#include "ops/operands.h"
#include "ops/reduce.h"

namespace trainer::ops {
namespace {

const NormKernels& norm_kernels(const Exec& ex) { return TRAINER_KERNELS(ex.device.isa(), norm_kernels); }

/// Returns the number of columns of a group.
int64_t width_of(const Tensor& x, int64_t groups) {
  TRAINER_CHECK(groups > 0 && x.cols() % groups == 0, "norm: {} groups do not divide {} columns", groups, x.cols());
  return x.cols() / groups;
}

/// Checks the operands that forward and apply have in common.
NormRows checked(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& y, const Tensor& mean,
                 const Tensor& rstd, double eps, bool center, int64_t groups, double gain_offset) {
  const int64_t rows = x.rows(), cols = width_of(x, groups);
  const DType statistics = accumulator_of(x.dtype);
  expect_rows(y, rows, x.cols(), x.dtype, "norm y");
  expect_count(gain, cols, x.dtype, "norm gain");
  if (bias) expect_count(bias, cols, x.dtype, "norm bias");
  if (mean) expect_count(mean, rows * groups, statistics, "norm mean");
  if (rstd) expect_count(rstd, rows * groups, statistics, "norm rstd");
  TRAINER_CHECK(center || !mean, "an RMS norm keeps no mean");
  return {x.data,
          gain.data,
          bias.data,
          y.data,
          mean.data,
          rstd.data,
          x.ld(),
          y.ld(),
          cols,
          groups,
          eps,
          center,
          gain_shift(gain_offset)};
}

}  // namespace

void run(Exec& ex, const NormForward& op) {
  const size_t type = kernel_index(op.x.dtype, "norm x");
  const NormRows rows =
      checked(op.x, op.gain, op.bias, op.y, op.mean, op.rstd, op.eps, op.center, op.groups, op.gain_offset);
  TRAINER_CHECK(!op.center || static_cast<bool>(op.mean) == static_cast<bool>(op.rstd),
                "norm keeps both statistics or neither");
  const OpTimer timer(ex.meter, OpKind::norm, {8.0 * static_cast<double>(op.x.count()), bytes_of(op.x, 2)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = norm_kernels(ex).forward[type];
  for_row_blocks(ex, op.x.rows(), rows_per_task(op.x.cols()),
                 [&](int64_t first, int64_t n) { kernel(rows, first, n); });
}

void run(Exec& ex, const NormApply& op) {
  const size_t type = kernel_index(op.x.dtype, "norm x");
  const NormRows rows =
      checked(op.x, op.gain, op.bias, op.y, op.mean, op.rstd, 0, op.center, op.groups, op.gain_offset);
  TRAINER_CHECK(op.rstd && (op.mean || !op.center), "NormApply requires the statistics of NormForward");
  const OpTimer timer(ex.meter, OpKind::norm, {4.0 * static_cast<double>(op.x.count()), bytes_of(op.x, 2)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = norm_kernels(ex).apply[type];
  for_row_blocks(ex, op.x.rows(), rows_per_task(op.x.cols()),
                 [&](int64_t first, int64_t n) { kernel(rows, first, n); });
}

void run(Exec& ex, const NormBackward& op) {
  const size_t type = kernel_index(op.x.dtype, "norm x");
  const int64_t rows = op.x.rows(), cols = width_of(op.x, op.groups);
  const DType dtype = op.x.dtype, sums = accumulator_of(dtype);
  expect_rows(op.dy, rows, op.x.cols(), dtype, "norm dy");
  expect_rows(op.dx, rows, op.x.cols(), dtype, "norm dx");
  if (op.residual) expect_rows(op.residual, rows, op.x.cols(), dtype, "norm residual");
  expect_count(op.gain, cols, dtype, "norm gain");
  if (op.center) expect_count(op.mean, rows * op.groups, sums, "norm mean");
  expect_count(op.rstd, rows * op.groups, sums, "norm rstd");
  expect_count(op.dgain, cols, sums, "norm dgain");
  if (op.dbias) expect_count(op.dbias, cols, sums, "norm dbias");

  const OpTimer timer(ex.meter, OpKind::norm,
                      {16.0 * static_cast<double>(op.x.count()), bytes_of(op.x, op.residual ? 4 : 3)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  const int64_t block = reduction_rows(rows), blocks = divide_up(rows, block);
  const Scratch gain_sums = ex.take("norm.gain_sums", {blocks, cols}, sums);
  Scratch bias_sums;
  if (op.dbias) bias_sums = ex.take("norm.bias_sums", {blocks, cols}, sums);
  if (ex.device.dry()) return;
  const NormGradient args{op.dy.data,       op.x.data,  op.gain.data, op.mean.data, op.rstd.data,
                          op.residual.data, op.dx.data, op.dy.ld(),   op.x.ld(),    op.residual.ld(),
                          op.dx.ld(),       cols,       op.groups,    op.center,    gain_shift(op.gain_offset)};
  const auto kernel = norm_kernels(ex).backward[type];
  for_row_blocks(ex, rows, block, [&](int64_t first, int64_t n) {
    std::byte* bias_sum = op.dbias ? row_at(bias_sums, first / block) : nullptr;
    kernel(args, first, n, row_at(gain_sums, first / block), bias_sum);
  });
  sum_partials(ex, gain_sums, op.dgain, op.accumulate_gain);
  if (op.dbias) sum_partials(ex, bias_sums, op.dbias, op.accumulate_bias);
}

}  // namespace trainer::ops
