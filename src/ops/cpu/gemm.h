#pragma once
// Driver of the built-in GEMMs: blocking, packing and parallel tasks around the kernels of one instruction set.
#include "ops/cpu/gemm_kernel.h"
#include "ops/gemm.h"

namespace trainer::ops {

const GemmTable& gemm_table(device::Isa isa);

/// op must have passed the checks of run(). Operands are not transposed first: both are packed into panels anyway, and
/// transposing made no linear layer's GEMM faster. The size of the scratch "gemm" depends only on shapes, dtypes,
/// threads and table; a dry device takes it too, but computes nothing.
void own_product(Exec& ex, const Gemm& op, const GemmTable& table);

/// True if GEMMs in fp32 or with bf16 panels and op(A) [m, k] pack B strip by strip while they multiply. In bf16, such
/// a GEMM gains from a packed weight only if the weight is used several times.
bool packs_strips(const GemmTable& table, DType compute, int64_t m, int64_t k);

/// Packed weights keep the operands' dtype. Their layout is [block of k][panel][k in block][columns of the kernel].
int64_t own_packed_bytes(DType compute, int64_t k, int64_t n, const GemmTable& table);
void own_pack(Exec& ex, const PackB& op, const GemmTable& table);

/// Returns the epilogue of a Gemm as plain pointers. T: operands, C: result.
template <typename T, typename C>
GemmStore<T, C> store_of(const Gemm& op) {
  const Epilogue& e = op.epilogue;
  GemmStore<T, C> store{
      .c = op.c.as<C>(), .ldc = op.c.ld(), .act = e.act, .gradient = e.gradient, .accumulate = op.accumulate};
  if (e.bias) store.bias = e.bias.as<T>();
  if (e.pre) store.pre = e.pre.as<C>(), store.ld_pre = e.pre.ld();
  if (e.residual) store.residual = e.residual.as<C>(), store.ld_residual = e.residual.ld();
  return store;
}

}  // namespace trainer::ops
