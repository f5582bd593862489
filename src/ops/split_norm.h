#pragma once
// Layer norm and RMS norm (ops/norm.h) over g ranks that split the hidden dimension: each has W of the H = g·W columns.
// Forward and backward pass have two halves each, between which the ranks exchange one or two values per row:
//   NormMoments;  all_gather of the moments;  NormMerge;  NormApply
//   SplitNormSums;  all_reduce(sum) of the sums;  SplitNormBackward
// Squares are of differences from each rank's own mean, merged in rank order (Chan et al. 1979): never E[x²] − mean².
#include "ops/norm.h"

namespace trainer::ops {

/// Returns the number of values exchanged per row: mean and squares, or only squares for RMS norms.
constexpr int64_t norm_planes(bool center) { return center ? 2 : 1; }

/// x [N, W] compute dtype → moments [planes, N] accumulator dtype: the mean of this rank's columns (centred norms only)
/// and Σ(x − that mean)², or Σx².
struct NormMoments {
  Tensor x, moments;
  bool center = true;
};
void run(Exec& ex, const NormMoments& op);

/// all [g, planes, N] are the moments of ranks with `width` columns each, in rank order. Computes mean [N] (empty for
/// RMS norms) and rstd [N] over all g·width columns, with sums over the ranks in order.
struct NormMerge {
  Tensor all, mean, rstd;
  int64_t width = 0;
  double eps = 1e-5;
  bool center = true;
};
void run(Exec& ex, const NormMerge& op);

/// With n = (x − mean)·rstd and g = dy·gain, over this rank's columns: sums [planes, N] = Σg (centred norms only),
/// Σ(g·n).
struct SplitNormSums {
  Tensor dy, x, gain, mean, rstd, sums;
  bool center = true;
  double gain_offset = 0;
};
void run(Exec& ex, const SplitNormSums& op);

/// NormBackward for this rank's columns, given the sums over all ranks and thus over the whole hidden dimension H:
/// dx = residual (if given) + rstd·(g − Σg/H − n·Σ(g·n)/H).
struct SplitNormBackward : NormBackward {
  Tensor sums;
  int64_t hidden = 0;
};
void run(Exec& ex, const SplitNormBackward& op);

}  // namespace trainer::ops
