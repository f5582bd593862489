#pragma once
// GEMMs with fused epilogues.
#include "tensor/exec.h"

namespace trainer::ops {

enum class Activation : uint8_t { none, gelu };  // gelu: the tanh form, 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))

/// Operations on an element of the result before it is stored. It is rounded once, at the store, except for `pre`.
struct Epilogue {
  Tensor bias;  // [n] compute dtype, or empty: added to every row
  Activation act = Activation::none;
  Tensor pre;             // [m, n]; forward: receives acc + bias (input of `act`), may be empty; gradient: read
  bool gradient = false;  // c = acc · act'(pre) instead of c = act(acc + bias)
  Tensor residual;        // [m, n], or empty: added last; may be c itself
};

/// c = op(a)·op(b) with the epilogue applied; or c += op(a)·op(b) if `accumulate` (then without an epilogue).
///   op(a) [m, k], op(b) [k, n], c [m, n];  trans_a: a is [k, m]; trans_b: b is [n, k]. Any pitch.
/// a and b share one compute dtype (f64, f32, bf16); c is that dtype or its accumulator (bf16 operands: f32).
/// Sums are in the accumulator type. Their order depends on shapes and instruction set only, never on threads. In bf16,
/// `pre` and `residual` have c's dtype. The activation is applied to the sum as `pre` stores it, whether kept or not,
/// so that it can be recomputed bit by bit.
struct Gemm {
  Tensor a, b, c;
  bool trans_a = false, trans_b = false;
  bool accumulate = false;
  Epilogue epilogue;
  Tensor packed_b;  // op(b) packed for this GEMM by PackB, or empty: b is read unpacked
};
void run(Exec& ex, const Gemm& op);
Cost cost(const Gemm& op);

/// True if GEMMs of A [m, k] benefit from a packed copy of a weight that `uses` of them read between two updates.
bool prefers_packed(const device::Device& device, DType compute, int64_t m, int64_t k, int64_t uses);
/// Returns the bytes of the packed form of op(b) [k, n] (u8 tensor); depends on the device's instruction set.
int64_t packed_bytes(const device::Device& device, DType compute, int64_t k, int64_t n);
/// packed <- op(b). b as in Gemm.
struct PackB {
  Tensor b, packed;
  bool trans_b = false;
};
void run(Exec& ex, const PackB& op);

/// Returns the name of the GEMM kernels of this dtype, for logs: "built-in avx2 kernels", "cuBLASLt 13.1".
std::string product_path(const device::Device& device, DType compute);

}  // namespace trainer::ops
