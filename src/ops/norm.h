#pragma once
// Layer norm (Ba et al. 2016) and RMS norm (Zhang & Sennrich 2019, eq. 4), one operator:
//   layer: y = (x − mean(x)) · rstd · gain + bias,  rstd = 1/sqrt(mean((x − mean)²) + eps)
//   rms:   y = x · rstd · gain (+ bias when given), rstd = 1/sqrt(mean(x²) + eps)
// A gain may be stored less an offset (Gemma: 1): it is gain_offset + gain, added in the accumulator type. Storing the
// sum would lose bits of the stored gain.
//
// With G > 1 groups, each row is normalised as G rows of H/G columns that share gain and bias: the heads of queries or
// keys.
#include "tensor/exec.h"

namespace trainer::ops {

/// x, y [N, H] compute dtype; gain [H/G]; bias [H/G] or empty. mean [N·G] (layer; empty for rms) and rstd [N·G] are in
/// the accumulator dtype and kept for the backward pass. Statistics are computed in the accumulator dtype, in two
/// passes (never E[x²] − mean²). mean and rstd may both be empty (generation); `center` selects LayerNorm or RMSNorm.
struct NormForward {
  Tensor x, gain, bias, y, mean, rstd;
  double eps = 1e-5;
  bool center = true;  // true: layer norm
  int64_t groups = 1;
  double gain_offset = 0;
};
void run(Exec& ex, const NormForward& op);

/// Computes only y, from kept statistics, for selective recomputation. Bitwise identical to NormForward's y.
struct NormApply {
  Tensor x, gain, bias, mean, rstd, y;
  bool center = true;
  int64_t groups = 1;
  double gain_offset = 0;
};
void run(Exec& ex, const NormApply& op);

/// dx = residual (if given) + dNorm(dy); dgain, dbias [H/G] in the accumulator dtype, overwritten or added to. Row
/// blocks of fixed size are summed in order, independently of the number of threads. dx may be dy or residual.
struct NormBackward {
  Tensor dy, x, gain, mean, rstd, residual, dx, dgain, dbias;  // dbias empty: no bias
  bool center = true;
  bool accumulate_gain = false, accumulate_bias = false;
  int64_t groups = 1;
  double gain_offset = 0;
};
void run(Exec& ex, const NormBackward& op);

/// Returns what kernels add to a gain. −0 changes no bit of any gain; +0 would change the sign of −0.
inline double gain_shift(double gain_offset) { return gain_offset == 0 ? -0.0 : gain_offset; }

}  // namespace trainer::ops
