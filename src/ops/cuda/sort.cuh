#pragma once
// Rows of a batch sorted by token: the order in which a table's gradient is summed.
#include "tensor/exec.h"

namespace trainer::ops::cuda {

/// order[start[v] … start[v + 1]) are the rows r with ids[r] = first + v, ascending. start [rows + 1] i32; order is i32
/// and at least as long as ids, with the rows of other tokens at its end. tokens[i] is the v of order[i], `rows` for
/// other tokens; null on a dry device.
struct SortedRows {
  Scratch start, order, keys;
  const uint32_t* tokens = nullptr;
};
/// ids [n] i32, n < 2^31; v in [0, rows). The size of scratch memory depends only on n and rows. A dry device takes it
/// too, but does not sort.
SortedRows sort_rows(Exec& ex, const Tensor& ids, int64_t first, int64_t rows);

}  // namespace trainer::ops::cuda
