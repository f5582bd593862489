#include "ops/squared_norm.h"

#include "ops/cpu/squared_norm_kernels.h"
#include "ops/cuda/ops.h"
#include "ops/operands.h"

namespace trainer::ops {

void run(Exec& ex, const SquaredNorm& op) { run(ex, SquaredNorms{{&op, 1}}); }

void run(Exec& ex, const SquaredNorms& op) {
  if (op.parts.empty()) return;
  const DType dtype = op.parts.front().x.dtype;
  const size_t type = kernel_index(dtype, "squared norm x");
  Cost cost;
  for (const SquaredNorm& part : op.parts) {
    const int64_t n = part.x.count();
    expect_count(part.x, n, dtype, "squared norm x");
    expect_count(part.blocks, divide_up(n, kNormBlock), DType::f64, "squared norm blocks");
    cost.flops += 2.0 * static_cast<double>(n);
    cost.bytes += static_cast<double>(part.x.bytes());
  }
  const OpTimer timer(ex.meter, OpKind::grad_norm, cost);
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = TRAINER_KERNELS(ex.device.isa(), squared_norm_kernels).square_sum[type];
  for (const SquaredNorm& part : op.parts) {
    double* blocks = part.blocks.as<double>();
    for_row_blocks(ex, part.x.count(), kNormBlock, [&](int64_t first, int64_t count) {
      blocks[first / kNormBlock] = kernel(part.x.data + first * size_of(dtype), count);
    });
  }
}

}  // namespace trainer::ops
