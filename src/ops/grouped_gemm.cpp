#include "ops/grouped_gemm.h"

#include <numeric>

#include "ops/cpu/gemm.h"
#include "ops/cpu/grouped_gemm.h"
#include "ops/cuda/ops.h"
#include "ops/operands.h"

namespace trainer::ops {
namespace {

/// Returns Σ rows, and checks that a tensor of `most` rows has them.
int64_t total_of(std::span<const int64_t> rows, int64_t most) {
  TRAINER_CHECK(!rows.empty(), "a grouped GEMM requires groups");
  const int64_t total = std::reduce(rows.begin(), rows.end());
  TRAINER_CHECK(total <= most && *std::ranges::min_element(rows) >= 0, "groups have {} rows, at most {} of them", total,
                most);
  return total;
}

/// GEMMs of groups with mean sizes. `bytes`: of the matrices, once each.
OpCall call_of_groups(std::span<const int64_t> rows, int64_t total, ProductShape mean, double row_bytes, double bytes) {
  const auto flops = 2.0 * static_cast<double>(total) * static_cast<double>(mean.n);
  return {.kind = OpKind::gemm,
          .cost = {flops * static_cast<double>(mean.trans_a ? mean.m : mean.k),
                   row_bytes * static_cast<double>(total) + bytes},
          .product = mean,
          .repeats = std::ssize(rows),
          .of_experts = true,
          .attention = {}};
}

}  // namespace

void run(Exec& ex, const GroupedGemm& op) {
  const int64_t rows = op.a.rows(), k = op.a.cols(), n = op.c.cols(), groups = std::ssize(op.rows);
  kernel_index(op.a.dtype, "grouped GEMM a");
  const int64_t total = total_of(op.rows, rows);
  expect_rows(op.b, groups * (op.trans_b ? n : k), op.trans_b ? k : n, op.a.dtype, "grouped GEMM b");
  expect_rows(op.c, rows, n, op.a.dtype, "grouped GEMM c");
  const auto row_bytes = static_cast<double>((k + n) * size_of(op.a.dtype));
  const ProductShape mean{.m = divide_up(total, groups), .k = k, .n = n, .trans_b = op.trans_b};
  const OpTimer timer(ex.meter, call_of_groups(op.rows, total, mean, row_bytes, bytes_of(op.b)));
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  own_grouped(ex, op, gemm_table(ex.device.isa()));
}

void run(Exec& ex, const GroupedWeightGradient& op) {
  const int64_t rows = op.x.rows(), k = op.x.cols(), n = op.dy.cols(), groups = std::ssize(op.rows);
  kernel_index(op.x.dtype, "grouped gradient x");
  const int64_t total = total_of(op.rows, rows);
  expect_rows(op.dy, rows, n, op.x.dtype, "grouped gradient dy");
  expect_rows(op.dw, groups * k, n, accumulator_of(op.x.dtype), "grouped gradient dw");
  const auto row_bytes = static_cast<double>((k + n) * size_of(op.x.dtype));
  const ProductShape mean{.m = k, .k = divide_up(total, groups), .n = n, .trans_a = true};
  const OpTimer timer(ex.meter,
                      call_of_groups(op.rows, total, mean, row_bytes, bytes_of(op.dw, op.accumulate ? 2 : 1)));
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  own_grouped(ex, op, gemm_table(ex.device.isa()));
}

}  // namespace trainer::ops
