#pragma once
// GEMMs with cuBLASLt, and a cache of their plans.
#include "ops/gemm_tuning.h"

namespace trainer::ops::cuda {

/// d = (op(a)·op(b) + beta·c + bias)·gelu'(aux), row-major, any row stride. Sums and scaling are in f32. op(a) [m, k],
/// op(b) [k, n] of one dtype (f32, bf16), k > 0; c, d [m, n] of one dtype (the operands' or f32).
struct LtProduct {
  Tensor a, b, c, d;
  bool trans_a = false, trans_b = false;
  float beta = 0;
  Tensor bias;  // [n], dtype of d, 16-byte aligned; empty: none
  Tensor aux;   // [m, n], dtype of d, 16-byte aligned, row stride a multiple of 8 elements; empty: none
  /// The size that differs from call to call, m or k. Calls share the algorithms for the next power of two, since a
  /// query of the heuristic for every size would take longer than the GEMM.
  enum class Varies : uint8_t { nothing, m, k } varies = Varies::nothing;
};

/// Returns the bytes of the transposed copy that the table's form for this GEMM requires, or 0. While forms are
/// measured, returns the bytes of the larger operand. The result depends only on shapes, dtypes and the table, so that
/// a dry device plans the same memory as a real one. It is the same whether or not the GEMM adds to d, since
/// micro-steps that differ only in that share a memory plan.
int64_t copy_bytes(const device::Device& device, const LtProduct& op);

/// Enqueues the GEMM, preceded by the copy that its form requires. Returns false and enqueues nothing if cuBLASLt has
/// no algorithm for the GEMM within the workspace. An algorithm that the library rejects at run time is replaced by the
/// library's next proposal, with a warning. The choice depends only on shapes, dtypes, alignments and the tuning table,
/// so it is the same in every run. `copy`: copy_bytes(op) bytes, or empty for the GEMM as it is.
bool run_product(Exec& ex, const LtProduct& op, const Tensor& workspace, const Tensor& copy = {});

}  // namespace trainer::ops::cuda
