#pragma once
// Common parts of all drivers of the built-in GEMMs: operands in either orientation, and the blocking of k.
#include <algorithm>

#include "ops/cpu/gemm.h"
#include "ops/operands.h"

namespace trainer::ops {

/// Splits k into blocks of nearly equal length. This is the only choice of blocking that affects the result's bits.
struct SumBlocks {
  template <typename T, typename C, typename P>
  SumBlocks(int64_t k, const GemmKernels<T, C, P>& kernels)
      : terms(k),
        step(kernels.step),
        count(k <= kernels.whole_k ? 1 : std::max<int64_t>(1, divide_up(k, kernels.block_k))),
        length(round_up(std::max<int64_t>(1, divide_up(k, count)), std::max<int64_t>(8, step))) {}
  int64_t first(int64_t block) const { return std::min(block * length, terms); }
  int64_t size(int64_t block) const { return first(block + 1) - first(block); }
  int64_t stored(int64_t block) const { return round_up(size(block), step); }  // in panels, with padding
  int64_t terms, step, count, length;
};

/// A matrix operand: element (row, k) of op(A), or of op(B) transposed.
template <typename T>
struct Operand {
  const T* data;
  int64_t ld;
  bool along_k;  // the elements of a row are contiguous along k
  const T* at(int64_t row, int64_t term) const { return data + (along_k ? row * ld + term : term * ld + row); }
};
template <typename T>
Operand<T> operand_of(const Tensor& tensor, bool along_k) {
  return {tensor.as<T>(), tensor.ld(), along_k};
}

/// C = op(A)·op(B) for small batches (packs_strips), with A not transposed and B not packed. The kernels are those for
/// packed weights, so the result is bitwise identical whether or not a weight is packed. Takes scratch "gemm".
void strip_product(Exec& ex, const Gemm& op, const GemmTable& table);

}  // namespace trainer::ops
