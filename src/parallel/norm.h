#pragma once
// The norm of every strategy. If rows are split over some axes, the gradients of gain and bias are all-reduced over
// these axes once per step. If columns are split, the ranks along the splitting axes all-gather each row's mean and sum
// of squares and merge them in rank order; the backward pass all-reduces two values per row over the same axes. RMS
// norms exchange one value per row instead of two.
#include "parallel/ranks.h"
#include "params/grad_sink.h"

namespace trainer::parallel {

struct NormSpec {
  std::string name;  // the parameters are name + ".gain" and name + ".bias"
  int64_t width = 0;
  bool center = true;  // layer norm; false: RMS norm
  bool bias = true;
  double eps = 1e-5;
  int64_t groups = 1;  // groups of `width` columns, normalised separately with the same gain (this rank's heads); more
                       // than 1 only if columns are not split
  double gain_offset = 0;  // the gain is this plus the parameter
};
struct NormStats {
  Scratch mean, rstd;  // [n · groups] accumulator type; RMS norms have no mean
};

class Norm {
 public:
  /// Creates the norm of activations in the spread `stream`.
  Norm(const Ranks& ranks, params::ParamStore& store, int group, const NormSpec& spec, Spread stream);

  /// True if columns are split over ranks, which then exchange statistics.
  bool is_split() const { return ranks_.size(cols_) > 1; }
  /// Computes y from x [n, W], this rank's rows and columns. Stores the statistics in `stats` unless that is null. If
  /// `stats` already has them (recomputation), they are reused, and the result is bitwise identical.
  Scratch forward(Exec& ex, const Tensor& x, NormStats* stats);
  /// Does the same and stores y in the caller's memory.
  void forward(Exec& ex, const Tensor& x, const Tensor& y, NormStats* stats);
  /// Computes dx = residual + dNorm(dy); residual may be empty.
  Scratch backward(Exec& ex, const Tensor& dy, const Tensor& x, const NormStats& stats, const Tensor& residual,
                   params::GradSink& grads);
  /// Does the same and stores dx in the caller's memory, which may be that of dy.
  void backward(Exec& ex, const Tensor& dy, const Tensor& x, const NormStats& stats, const Tensor& residual,
                const Tensor& dx, params::GradSink& grads);

 private:
  /// Computes the statistics of rows whose columns are split over ranks.
  void merge_statistics(Exec& ex, const Tensor& x, const Tensor& mean, const Tensor& rstd);
  Tensor bias() const { return bias_ < 0 ? Tensor{} : store_.weight(bias_); }
  const Ranks ranks_;
  const AxisSet cols_;
  int64_t width_, groups_;
  params::ParamStore& store_;
  bool center_;
  double eps_, offset_;
  params::SlotId gain_ = -1, bias_ = -1;
};

}  // namespace trainer::parallel
