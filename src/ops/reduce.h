#pragma once
// Sums over rows, in an order that does not depend on the number of threads: blocks of rows are summed separately, then
// the sums of the blocks are added in order.
#include <algorithm>

#include "tensor/exec.h"

namespace trainer::ops {

/// Returns the number of rows per block, for at most 128 blocks of at least 16 rows.
inline int64_t reduction_rows(int64_t rows) { return std::max<int64_t>(16, divide_up(rows, 128)); }

/// sums[c] (+)= partials[0, c] + partials[1, c] + …; partials [blocks, F], sums [F], both of one accumulator type.
void sum_partials(Exec& ex, const Tensor& partials, const Tensor& sums, bool accumulate);

}  // namespace trainer::ops
