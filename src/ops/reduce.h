#pragma once
// Sums over rows, in an order that the number of threads does not change. Blocks of rows are summed on their own, then
// the blocks in order.
#include <algorithm>
#include <initializer_list>
#include <span>
#include <vector>

#include "tensor/exec.h"

namespace trainer::ops {

/// Rows of a block: at most 128 blocks, of at least 16 rows.
inline int64_t reduction_rows(int64_t rows) { return std::max<int64_t>(16, divide_up(rows, 128)); }

/// sums[c] (+)= partials[0, c] + partials[1, c] + …; partials [blocks, F], sums [F], both of one accumulator type.
void sum_partials(Exec& ex, const Tensor& partials, const Tensor& sums, bool accumulate);

/// Where sums over rows go: [F] accumulator type; empty: nowhere.
struct ColumnSums {
  Tensor sums;
  bool accumulate = false;
};

/// PartialSums holds what operators on a GPU have summed over blocks of rows, until one launch adds up the blocks of
/// all. Such a sum takes microseconds of latency and next to no work, so many in one launch cost as much as one. The
/// operators of a layer leave eight: gain and bias of two norms, biases of four linears.
///
/// The bits are those of operators that add up their own blocks. Operators on a CPU do that always: there a launch
/// costs nothing, and the blocks are still in the cache.
class PartialSums {
 public:
  /// A sum to be added up: sums[c] (+)= Σ_b partials[b, c]; partials [blocks, F] f32, packed.
  struct Sum {
    Tensor partials;
    ColumnSums into;
  };

  /// Takes over `partials`, the blocks of each given sum one after the other. The sums are complete after finish().
  void add(Scratch partials, std::initializer_list<ColumnSums> sums);
  /// Adds up everything on ex.device, a GPU, and gives the memory back. A sum is written once between two calls.
  void finish(Exec& ex);
  std::span<const Sum> waiting() const { return sums_; }

 private:
  std::vector<Sum> sums_;
  std::vector<Scratch> memory_;
};

}  // namespace trainer::ops
