#include "train/scorer.h"

#include <algorithm>
#include <span>

#include "tensor/host_copy.h"

namespace trainer::train {

Scorer::Scorer(ModelRunner& runner, int64_t longest)
    : runner_(runner), sequences_(runner.micro_batch()), length_(runner.model().seq_len()) {
  // Halving the length and doubling the number of sequences keeps the number of rows, so rows split over ranks as
  // evenly as in an evaluation. Ranks that share sequences divide each into segments.
  const int64_t segments = parallel::RowOrder::segments(runner.sharding());
  while (length_ % (2 * segments) == 0 && length_ / 2 >= longest) {
    length_ /= 2;
    sequences_ *= 2;
  }
  row_order_ = parallel::RowOrder(runner.sharding(), sequences_, length_);
  const Shape rows{sequences_ * length_};
  device::Device& device = runner.device();
  ids_ = Buffer(device, "data", rows, DType::i32);
  targets_ = Buffer(device, "data", rows, DType::i32);
  weights_ = Buffer(device, "data", rows, runner.store().state_dtype());
  losses_ = Buffer(device, "data", {runner.model().loss_rows({rows.count()})}, DType::f64);
  order_ = runner.on_device(row_order_.rows());
  positions_ = runner.on_device(row_order_.positions());
  rows_ = runner.model().rows_of_losses(device, {rows.count()});
  TRAINER_CHECK(static_cast<int64_t>(rows_.size()) == losses_.tensor().count(),
                "expected one value per row, but there are {} values for {} rows", losses_.tensor().count(),
                rows_.size());
  for (int64_t& row : rows_)
    if (order_) row = row_order_.rows()[static_cast<size_t>(row)];
  Meter uncounted;
  runner.record(
      key_, [&](Exec& ex) { runner_.model().loss(ex, batch(), losses_); }, uncounted);
  runner.arena().seal();
}

parallel::Batch Scorer::batch() const {
  return {.ids = ids_,
          .targets = targets_,
          .weights = weights_,
          .order = order_,
          .positions = positions_,
          .sequences = sequences_,
          .seq_len = length_};
}

std::vector<double> Scorer::losses(const data::TokenBatch& host) {
  runner_.upload(host, row_order_, {ids_, targets_, weights_});
  Exec ex = runner_.exec();
  runner_.begin(ex, key_);
  runner_.model().loss(ex, batch(), losses_);
  runner_.end();
  const HostCopy here(ex.device, losses_);
  const std::span<const double> values = here.tensor().span<double>();
  std::vector<double> sums(static_cast<size_t>(runner_.replicas() * sequences_));
  const int64_t first = runner_.replica() * sequences_;
  for (size_t i = 0; i < rows_.size(); ++i) sums[static_cast<size_t>(first + rows_[i] / length_)] += values[i];
  constexpr auto kMost = static_cast<size_t>(RankScalars::kMost);
  for (size_t at = 0; at < sums.size(); at += kMost)
    runner_.scalars().sum_over_rows(std::span(sums).subspan(at, std::min(kMost, sums.size() - at)));
  return sums;
}

}  // namespace trainer::train
