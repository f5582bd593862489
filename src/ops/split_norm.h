#pragma once
// Layer norm and RMS norm (ops/norm.h) for ranks that share the hidden dimension. Each has W of the H = g·W columns of
// its rows. Forward and backward have two halves each, with one exchange of a value or two per row between them:
//   NormMoments;  all_gather of the moments;  NormMerge;  NormApply writes y as before
//   SplitNormSums;  all_reduce(sum) of the sums;  SplitNormBackward
// Squares are of differences from each rank's own mean, merged in rank order (Chan et al. 1979): never E[x²] − mean².
#include "ops/norm.h"

namespace trainer::ops {

/// Returns the number of values per row that are exchanged: mean and squares; for RMS norms only squares.
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
};
void run(Exec& ex, const SplitNormSums& op);

/// NormBackward of this rank's columns, with the sums of all ranks over the whole hidden dimension H:
/// dx = residual (if given) + rstd·(g − Σg/H − n·Σ(g·n)/H).
struct SplitNormBackward : NormBackward {
  Tensor sums;
  int64_t hidden = 0;
};
void run(Exec& ex, const SplitNormBackward& op);

}  // namespace trainer::ops
