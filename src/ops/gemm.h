#pragma once
// GEMMs with fused epilogues.
#include "ops/activation_kind.h"
#include "tensor/exec.h"

namespace trainer::ops {

/// Operations on an element of the result before it is stored. The element is rounded once, when it is stored, apart
/// from the rounding of `pre` and, on a GPU, that of bf16 sums before bias or the slope, which cuBLASLt does for some
/// shapes.
struct Epilogue {
  Tensor bias;                        // [n] compute dtype, or empty: added to every row
  Activation act = Activation::none;  // not silu
  Tensor pre;             // [m, n]; forward: receives acc + bias (input of `act`), may be empty; gradient: read
  bool gradient = false;  // c = acc · act'(pre) instead of c = act(acc + bias)
  Tensor residual;        // [m, n], or empty: added last; may be c itself

  /// Returns the epilogue of rows [begin, begin + rows) of c.
  Epilogue row_range(int64_t begin, int64_t rows) const {
    Epilogue part = *this;
    if (pre) part.pre = pre.row_range(begin, rows);
    if (residual) part.residual = residual.row_range(begin, rows);
    return part;
  }
};

/// c = op(a)·op(b) with the epilogue applied; or c += op(a)·op(b) if `accumulate` (then without an epilogue).
///   op(a) [m, k], op(b) [k, n], c [m, n];  trans_a: a is [k, m]; trans_b: b is [n, k]. Any pitch.
/// a and b have the same compute dtype (f64, f32, bf16); c has that dtype or its accumulator dtype (f32 for bf16).
/// Sums are accumulated in the accumulator dtype. Their order depends only on shapes and instruction set, never on
/// threads. `pre` and `residual` have c's dtype. The activation is applied to the sum rounded to that dtype, whether
/// `pre` is stored or not, so that recomputing it from `pre` is bitwise identical.
struct Gemm {
  Tensor a, b, c;
  bool trans_a = false, trans_b = false;
  bool accumulate = false;
  Epilogue epilogue;
  OpKind kind = OpKind::gemm;  // category for the meter; no effect on the result
  Tensor packed_b;             // op(b) packed for this GEMM by PackB, or empty: b is read. b needs data if trans_b
};
void run(Exec& ex, const Gemm& op);
Cost cost(const Gemm& op);

/// The way in which GEMMs of one kind read a weight, their b.
struct WeightUse {
  int64_t m = 0, k = 0;  // op(A) is [m, k]
  bool transposed = false;
  int64_t uses = 1;       // GEMMs between two changes of the weight
  bool constant = false;  // the weight never changes
};
/// Packing B in this number of GEMMs costs as much as writing a copy to memory and reading it again.
inline constexpr int64_t kFewUses = 2;
/// True if these GEMMs benefit from a packed copy of the weight. On a CPU always true for a constant weight that is not
/// transposed, since the matrix may be released when it has been packed.
bool prefers_packed(const device::Device& device, DType compute, const WeightUse& use);
/// Returns the bytes of the packed form of op(b) [k, n] (u8 tensor); depends on the device's instruction set.
int64_t packed_bytes(const device::Device& device, DType compute, int64_t k, int64_t n);
/// packed <- op(b). b as in Gemm.
struct PackB {
  Tensor b, packed;
  bool trans_b = false;
};
void run(Exec& ex, const PackB& op);

/// Returns the name of the GEMM kernels for this dtype, for logs: "built-in avx2 kernels", "cuBLASLt 13.1".
std::string product_path(const device::Device& device, DType compute);

}  // namespace trainer::ops
