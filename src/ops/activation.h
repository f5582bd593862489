#pragma once
// Activation functions outside the epilogues of GEMMs (ops/gemm.h). They also serve as the epilogue of a GEMM whose
// partial sums are all-reduced, since a fused epilogue would be applied before the all-reduce. Results are bitwise
// identical to a fused epilogue's for the same sum.
#include "ops/gemm.h"

namespace trainer::ops {

/// pre = x + bias; y = act(pre), applied to pre as it is stored. x, pre, y [N, F] of one compute dtype; bias [F] or
/// empty; pre may be empty; y or pre may be x. Without bias and pre, it recomputes an epilogue's output from its `pre`
/// (selective recomputation).
struct BiasActivation {
  Tensor x, bias, pre, y;
  Activation act = Activation::none;
};
void run(Exec& ex, const BiasActivation& op);

/// dx = dy · act'(x): x is the activation's input. [N, F] each; dx may be dy or x.
struct ActivationBackward {
  Tensor dy, x, dx;
  Activation act = Activation::none;
};
void run(Exec& ex, const ActivationBackward& op);

/// y = other + (x + bias), added in that order and rounded once. x, other, y [N, F], any pitch; bias [F] or empty; y
/// may be x or other.
struct Add {
  Tensor x, other, y, bias = {};
};
void run(Exec& ex, const Add& op);

/// The gated units SwiGLU and GeGLU (Shazeer 2020): y = act(gate) · up, rounded once. gate, up [N, F] (column ranges of
/// one GEMM), y [N, F]. With weights ([N] accumulator type), row r of y is multiplied by weights[r] before it is
/// rounded.
struct GatedForward {
  Tensor gate, up, y, weights = {};
  Activation act = Activation::silu;
};
void run(Exec& ex, const GatedForward& op);

/// dgate and dup from dy; they may be gate and up themselves. With weights, dweights[r] = Σ_c dy[r, c]·act(gate)·up
/// before rounding, [N] accumulator type, in an order that depends only on F.
struct GatedBackward {
  Tensor dy, gate, up, dgate, dup, weights = {}, dweights = {};
  Activation act = Activation::silu;
};
void run(Exec& ex, const GatedBackward& op);

/// y = 1/(1 + e^−x). x, y [N, F], accumulator type; y may be x.
struct Sigmoid {
  Tensor x, y;
};
void run(Exec& ex, const Sigmoid& op);

/// dx = dy·y·(1 − y), rounded to dx's type. dy, y [N, F] accumulator type, dx [N, F] compute type.
struct SigmoidBackward {
  Tensor dy, y, dx;
};
void run(Exec& ex, const SigmoidBackward& op);

/// x = cap · tanh(x / cap), in place: bounds logits. x f32 or f64.
struct SoftCap {
  Tensor x;
  double cap = 0;
};
void run(Exec& ex, const SoftCap& op);

}  // namespace trainer::ops
