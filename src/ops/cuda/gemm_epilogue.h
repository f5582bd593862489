#pragma once
// The part of a GEMM's epilogue that cuBLASLt does not support.
#include "ops/gemm.h"

namespace trainer::ops::cuda {

/// c = `epilogue` applied to `sums` [m, n] (f32, or c's dtype; empty: zeros). As in Gemm: `pre` receives sums + bias,
/// or is read by a gradient; sums and residual may be c itself. Operands f32 or bf16, any row stride.
void finish_product(Exec& ex, const Tensor& sums, const Epilogue& epilogue, const Tensor& c);

}  // namespace trainer::ops::cuda
