#pragma once
// The norm of every strategy. Rows may be split over some axes: then the gradients of gain and bias are all-reduced
// over those once a step. Columns may be split over others: their ranks all-gather each row's mean and sum of squares
// and merge them in rank order. The backward pass all-reduces two values per row over them. RMS norms exchange one
// value each time.
#include "parallel/ranks.h"
#include "params/grad_sink.h"

namespace trainer::parallel {

struct NormSpec {
  std::string name;  // the parameters are name + ".gain" and name + ".bias"
  int64_t width = 0;
  bool center = true;  // layer norm; false: RMS norm
  bool bias = true;
  double eps = 1e-5;
};
struct NormStats {
  Scratch mean, rstd;  // [n] accumulator type; mean only for layer norm
};

class Norm {
 public:
  /// Makes the norm of activations in the spread `stream`.
  Norm(const Ranks& ranks, params::ParamStore& store, int group, const NormSpec& spec, Spread stream);

  /// True if rows are split over ranks, which then exchange statistics.
  bool is_split() const { return ranks_.size(cols_) > 1; }
  /// Computes y from x [n, W], a rank's rows and columns; keeps the statistics unless `stats` is null. Statistics that
  /// were kept before are reused, which gives the same bits (recomputation).
  Scratch forward(Exec& ex, const Tensor& x, NormStats* stats);
  /// Computes dx = residual + dNorm(dy); residual may be empty.
  Scratch backward(Exec& ex, const Tensor& dy, const Tensor& x, const NormStats& stats, const Tensor& residual,
                   params::GradSink& grads);

 private:
  /// Merges the statistics of rows whose columns are split over ranks.
  void merge_statistics(Exec& ex, const Tensor& x, const Tensor& mean, const Tensor& rstd);
  Tensor bias() const { return bias_ < 0 ? Tensor{} : store_.weight(bias_); }
  const Ranks ranks_;
  const AxisSet cols_;
  int64_t width_;
  params::ParamStore& store_;
  bool center_;
  double eps_;
  params::SlotId gain_ = -1, bias_ = -1;
};

}  // namespace trainer::parallel
