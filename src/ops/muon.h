#pragma once
// Muon (Jordan 2024; Moonlight, arXiv 2502.16982) apart from its GEMMs, in canonical arithmetic like ops/update.h:
// the same operations in the same order with the same rounding on every device. optim/orthogonalize.h adds the
// GEMMs.
#include "tensor/exec.h"

namespace trainer::ops {

/// Per element, rn = rounded to the state's type (f32 or f64):
///   x = rn(g·gs); m = fma(mu, m, rn(omu·x)); g = nesterov ? fma(mu, m, rn(omu·x)) : m
/// with omu = 1 − mu in double, then rounded. The direction overwrites the gradient. m, g flat [n] of one dtype.
struct MuonMomentum {
  Tensor m, g;
  double momentum = 0;
  double gradient_scale = 1;
  bool nesterov = true;
};
void run(Exec& ex, const MuonMomentum& op);

/// Elements flat[at + i·stride] and packed[place + i], i < length: rows of a matrix in a flat buffer, and in a message
/// or in the whole matrix. An operator takes them as a tensor i64 [n, 4] in the device's memory.
struct Strip {
  int64_t at, place, length, stride;
};
/// The length of a strip that one task handles; longer strips are allowed, but run on one thread.
inline constexpr int64_t kStripElements = 16384;

/// packed <- flat, for all strips; rounded to the type of `packed` (f64, f32, bf16; f64 to bf16 through f32).
struct GatherStrips {
  Tensor flat, strips, packed;
};
void run(Exec& ex, const GatherStrips& op);

/// flat <- scale·packed, for all strips: the product of f32 values is rounded to f32, that of f64 values or of one type
/// each to f64, and then to the type of `flat`. `scale` is rounded to that type first.
struct ScatterStrips {
  Tensor packed, strips, flat;
  double scale = 1;
};
void run(Exec& ex, const ScatterStrips& op);

/// x <- x · rn(1/max(room·‖x‖, floor)) in the accumulator type A, rounded to the type of x (f64, f32, bf16). ‖x‖ is the
/// root of the sum of blocks[i], the squares of elements [65536·i, 65536·(i+1)) (ops/squared_norm.h), added in
/// order; it and the quotient are computed in f64. rn: rounded to A. x is packed; blocks [ceil(n/65536)] f64 is scratch
/// memory.
struct MuonNormalize {
  Tensor x, blocks;
  double room = 1, floor = 1e-7;
};
void run(Exec& ex, const MuonNormalize& op);

/// y <- fma(alpha, product, rn(beta·x)) in the accumulator type, rounded to the type of x and y (f64, f32, bf16). All
/// packed, with equal counts; `product` has the accumulator dtype. y may be x.
struct MuonCombine {
  Tensor product, x, y;
  double alpha = 1, beta = 0;
};
void run(Exec& ex, const MuonCombine& op);

}  // namespace trainer::ops
