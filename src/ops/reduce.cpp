#include "ops/reduce.h"

#include "ops/cpu/elementwise_kernels.h"
#include "ops/operands.h"

namespace trainer::ops {

void sum_partials(Exec& ex, const Tensor& partials, const Tensor& sums, bool accumulate) {
  constexpr int64_t kColumns = 256;
  const auto kernel =
      TRAINER_KERNELS(ex.device.isa(), elementwise_kernels).partial_sum[kernel_index(sums.dtype, "sums")];
  for_row_blocks(ex, sums.count(), kColumns, [&](int64_t first, int64_t n) {
    kernel(partials.data, partials.rows(), partials.ld(), sums.data, accumulate, first, n);
  });
}

}  // namespace trainer::ops
