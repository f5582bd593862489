#pragma once
// Sums over rows, in an order that does not depend on the number of threads. Blocks of rows are summed separately, then
// the blocks in order.
#include <algorithm>

#include "tensor/exec.h"

namespace trainer::ops {

/// Returns the rows of a block: at most 128 blocks, of at least 16 rows.
inline int64_t reduction_rows(int64_t rows) { return std::max<int64_t>(16, divide_up(rows, 128)); }

/// sums[c] (+)= partials[0, c] + partials[1, c] + …; partials [blocks, F], sums [F], both of one accumulator type.
void sum_partials(Exec& ex, const Tensor& partials, const Tensor& sums, bool accumulate);

}  // namespace trainer::ops
