#pragma once
// GEMMs by cuBLASLt, with a cache of plans.
#include "ops/gemm_tuning.h"

namespace trainer::ops::cuda {

/// d = (op(a)·op(b) + beta·c + bias)·gelu'(aux), row-major, any row stride. Sums and the scaling in f32. op(a) [m, k],
/// op(b) [k, n] of one dtype (f32, bf16), k > 0; c, d [m, n] of one dtype (the operands' or f32).
struct LtProduct {
  Tensor a, b, c, d;
  bool trans_a = false, trans_b = false;
  float beta = 0;
  Tensor bias;  // [n], dtype of d, at a multiple of 16 bytes; empty: none
  Tensor aux;   // [m, n], dtype of d, at a multiple of 16 bytes, rows a multiple of 8 elements apart; empty: none
};

/// Returns the bytes of the operand that is transposed first, if the table has such a form for the GEMM, else 0. While
/// forms are measured, returns those of the larger operand. It is a function of shapes, dtypes and the table, so that a
/// dry device plans the same memory as a real one. It does not depend on whether the GEMM is added to d, since
/// micro-steps that differ only in that share a plan.
int64_t copy_bytes(const device::Device& device, const LtProduct& op);

/// Queues the GEMM, preceded by the copy that its form requires. Returns false and queues nothing if cuBLASLt has no
/// algorithm for it within the workspace. An algorithm that the library rejects at run time is replaced by its next
/// proposal, with a warning. The choice is a function of shapes, dtypes, alignments and the tuning table: the same in
/// every run. `copy`: copy_bytes(op), or empty for the GEMM as it is.
bool run_product(Exec& ex, const LtProduct& op, const Tensor& workspace, const Tensor& copy = {});

}  // namespace trainer::ops::cuda
