#pragma once
// Layer norm (Ba et al. 2016) and RMS norm (Zhang & Sennrich 2019, eq. 4), one operator:
//   layer: y = (x − mean(x)) · rstd · gain + bias,  rstd = 1/sqrt(mean((x − mean)²) + eps)
//   rms:   y = x · rstd · gain (+ bias when given), rstd = 1/sqrt(mean(x²) + eps)
#include "tensor/exec.h"

namespace trainer::ops {

class PartialSums;

/// x, y [N, H] compute dtype; gain [H]; bias [H] or empty. mean [N] (layer; empty for rms) and rstd [N] are in the
/// accumulator dtype and kept for backward. Statistics in the accumulator dtype, two passes (never E[x²] − mean²). mean
/// and rstd may both be empty (generation); `center` says which norm it is.
struct NormForward {
  Tensor x, gain, bias, y, mean, rstd;
  double eps = 1e-5;
  bool center = true;  // true: layer norm
};
void run(Exec& ex, const NormForward& op);

/// y alone, from kept statistics: what selective recomputation calls. Bit-identical to NormForward's y.
struct NormApply {
  Tensor x, gain, bias, mean, rstd, y;
  bool center = true;
};
void run(Exec& ex, const NormApply& op);

/// dx = residual (if given) + dNorm(dy); dgain, dbias [H] in the accumulator dtype, overwritten or added to.
/// Row blocks of fixed size are summed in order: independent of threads. dx may be dy or residual.
///
/// A GPU, whose kernel walks over the rows anyway, can sum the columns of dx as well: that is the gradient of the bias
/// of the linear whose output dx is the gradient of, which then reads dx once less. Terms of the sums are dx before it
/// is rounded. A CPU leaves `dx_sums` empty: its products sum columns as they pack them.
struct NormBackward {
  Tensor dy, x, gain, mean, rstd, residual, dx, dgain, dbias;  // dbias empty: no bias
  bool center = true;
  bool accumulate_gain = false, accumulate_bias = false;
  PartialSums* later = nullptr;  // ops/reduce.h: a GPU leaves the sums of its blocks there; null: adds them up
  Scratch* dx_sums = nullptr;    // receives Σ dx of blocks of rows [blocks, H] f32, for PartialSums; null: not wanted
};
void run(Exec& ex, const NormBackward& op);

}  // namespace trainer::ops
