#pragma once
// One GEMM for cuBLASLt: its descriptors, its name, and the algorithms that the library proposes for it.
#include <cublasLt.h>

#include <array>
#include <string>
#include <vector>

#include "ops/cuda/cublas.h"

namespace trainer::ops::cuda {

/// Throws Code::device with the status's name unless the status is success.
void check(cublasStatus_t status, const char* what);

/// Returns the bytes of a transposed copy of an operand, with rows aligned to 16 bytes, the library's fastest case.
int64_t transposed_bytes(const Tensor& x);
/// Returns the same GEMM in a different form. `copy`: memory for the operand that is transposed first.
LtProduct in_form(LtProduct op, GemmForm form, const Tensor& copy);
/// Returns the GEMM whose algorithms this one uses: with the size that varies rounded up to a power of two.
LtProduct rounded_up(LtProduct op);
/// Enqueues the copy that precedes the GEMM.
void transpose_first(Exec& ex, const LtProduct& op, GemmForm form, const LtProduct& formed);

/// The facts on which the choice of an algorithm may depend: shapes, dtypes, row strides, alignments.
using ProductKey = std::array<int64_t, 15>;
ProductKey key_of(const LtProduct& op, int64_t workspace, bool copy);
/// Returns the GEMM's name in tuning tables and messages.
std::string name_of_product(const LtProduct& op);

/// Descriptors of one GEMM, and the algorithms that may run it, best first. The first is used; one that the library
/// rejects at run time is removed.
struct LtPlan {
  cublasLtMatmulDescOpaque_t product{};
  cublasLtMatrixLayoutOpaque_t a{}, b{}, c{}, d{};  // in cuBLASLt's order: its a is our b
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  GemmForm form = GemmForm::as_is;
  bool tuned = false;  // the only algorithm comes from a tuning table
};
/// Returns the descriptors without algorithms.
LtPlan described(const LtProduct& op);
/// Sets the addresses in the descriptors to those of `op`, a GEMM with the same key.
void set_addresses(LtPlan& plan, const LtProduct& op);

/// Returns the heuristic's proposals within the workspace, best first; empty if the library does not support the GEMM.
/// Algorithms that split k add partial sums in f32 in a fixed order: no atomics, no rounding to the result's dtype.
/// `measured`: for measuring, which finds out whether algorithms that keep partial sums in an f32 result are faster.
std::vector<cublasLtMatmulHeuristicResult_t> proposals(cublasLtHandle_t handle, LtPlan& plan, const LtProduct& op,
                                                       int64_t workspace, int most, bool measured);
/// True if the library can run the GEMM with this algorithm within the workspace.
bool accepts(cublasLtHandle_t handle, LtPlan& plan, const cublasLtMatmulAlgo_t& algorithm, int64_t workspace);

}  // namespace trainer::ops::cuda
