#pragma once
// AdamW (Loshchilov & Hutter 2019) in canonical arithmetic: every device performs the same operations in the same order
// with the same rounding, so results are bitwise identical wherever a parameter is updated. All scalars are computed
// once per step on the host in double, and rounded to the state's type.
#include <span>

#include "tensor/exec.h"

namespace trainer::ops {

struct AdamWScalars {
  double beta1 = 0, beta2 = 0;     // b1, b2; ob1 = 1 − b1, ob2 = 1 − b2 in double, then rounded
  double inv_sqrt_correction = 0;  // 1/sqrt(1 − b2^t)
  double eps = 0;
  double negative_step = 0;   // −lr/(1 − b1^t)
  double negative_decay = 0;  // −lr·weight_decay, 0 without decay
  double gradient_scale = 1;  // loss scale and clipping: a single factor, rounded to the state's type
  int64_t t = 1;              // number of the update, 1-based: for rounding moments to bf16
};

/// Per element, rn = rounded to the state's type (f32 or f64):
///   x = rn(g·gs); m = fma(b1, m, rn(ob1·x)); v = fma(b2, v, rn(rn(ob2·x)·x)); d = fma(sqrt(v), isq2, eps);
///   u = m/d; q = fma(nwd, p, p); p = fma(nstep, u, q); compute = bf16(p)
/// Moments may be stored in bf16, half of f32 state; this update uses m and v before they are rounded. m is rounded to
/// the nearest bf16. Rounding v to nearest would freeze it if 1 − b2 < 2⁻⁹, so it is rounded stochastically: with
///   mix(h): h ^= h >> 16; h *= 0x7feb352d; h ^= h >> 15; h *= 0x846ca68b; h ^= h >> 16 (32-bit integers)
///   h = mix(bits(v) ^ mix(bits(p) + t·0x9e3779b9)) with p before the update
/// the stored bits are (bits(v) + (h & 0xffff)) & 0xffff0000. They depend only on values, not on where an element is.
/// p, m, v, g flat [n] of one dtype (f32, f64), or m and v bf16 with f32 p and g; compute: flat [n] bf16 copy to
/// refresh, or empty. With f32 state g may be bf16, and is widened first. `round_gradient`: rounds an f32 g to bf16
/// first; the result is bitwise identical to that with a bf16 g. The copy bypasses the caches if the whole update is
/// larger than they are.
constexpr uint32_t rounding_salt(const AdamWScalars& s) { return static_cast<uint32_t>(s.t) * 0x9e3779b9u; }
struct AdamW {
  Tensor p, m, v, g, compute;
  AdamWScalars scalars;
  bool round_gradient = false;
  int64_t whole = 0;  // elements of the update that this one is a part of, if it is more than this one
};
void run(Exec& ex, const AdamW& op);

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
