#pragma once
// Sums of squares in canonical arithmetic (ops/update.h).
#include <span>

#include "tensor/exec.h"

namespace trainer::ops {

/// blocks[i] = Σ x² over elements [65536·i, 65536·(i+1)) in f64, in an order fixed by the element index. x flat f64,
/// f32 or bf16; blocks [ceil(n/65536)] f64. A non-finite element makes its block non-finite.
inline constexpr int64_t kNormBlock = 65536;
struct SquaredNorm {
  Tensor x, blocks;
};
void run(Exec& ex, const SquaredNorm& op);
/// Several at once, with x of one dtype: a GPU computes them in one launch, since a single one is too short to fill it.
struct SquaredNorms {
  std::span<const SquaredNorm> parts;
};
void run(Exec& ex, const SquaredNorms& op);

}  // namespace trainer::ops
