#include "ops/merge_attention.h"

#include "ops/cpu/merge_attention_kernels.h"
#include "ops/cuda/ops.h"
#include "ops/operands.h"

namespace trainer::ops {

void run(Exec& ex, const MergeAttention& op) {
  const size_t type = kernel_index(op.part.dtype, "merged attention part");
  const DType sums = accumulator_of(op.part.dtype);
  const int64_t rows = op.part.rows(), cols = op.part.cols();
  TRAINER_CHECK(op.q_len > 0 && rows % op.q_len == 0 && op.heads > 0 && cols % op.heads == 0,
                "merged attention part is {}, expected {} heads of sequences of {} queries", to_string(op.part),
                op.heads, op.q_len);
  expect_rows(op.sum, rows, cols, sums, "merged attention sum");
  for (const Tensor& lse : {op.part_lse, op.sum_lse}) {
    expect_rows(lse, rows / op.q_len * op.heads, op.q_len, sums, "merged attention lse");
    expect_count(lse, rows * op.heads, sums, "merged attention lse");
  }
  const double moved = bytes_of(op.part) + bytes_of(op.part_lse) + bytes_of(op.sum, op.first ? 1 : 2) +
                       bytes_of(op.sum_lse, op.first ? 1 : 2);
  const OpTimer timer(ex.meter, OpKind::elementwise, {op.first ? 0 : 3.0 * static_cast<double>(op.sum.count()), moved});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto merge = TRAINER_KERNELS(ex.device.isa(), merge_attention_kernels).merge[type];
  const MergeRows all{op.part.data, op.part_lse.data, op.sum.data,     op.sum_lse.data, op.part.ld(),
                      op.sum.ld(),  op.heads,         cols / op.heads, op.q_len,        op.first};
  for_row_blocks(ex, rows, rows_per_task(cols), [&](int64_t first, int64_t n) { merge(all, first, n); });
}

}  // namespace trainer::ops
