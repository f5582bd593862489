#include "train/scorer.h"

#include <algorithm>

#include "tensor/host_copy.h"

namespace trainer::train {

Scorer::Scorer(ModelRunner& runner, std::span<const int64_t> texts) : runner_(runner) {
  const int64_t count = runner.micro_batch() * runner.model().seq_len();
  device::Device& device = runner.device();
  for (Buffer* buffer : {&ids_, &targets_}) *buffer = Buffer(device, "data", {count}, DType::i32);
  weights_ = Buffer(device, "data", {count}, runner.store().state_dtype());
  const int64_t losses = runner.model().loss_rows({count});
  for (Buffer* buffer : {&losses_, &margins_}) *buffer = Buffer(device, "data", {losses}, DType::f64);
  if (losses > 0) rows_ = runner.model().rows_of_losses(device, {count});
  TRAINER_CHECK(std::ssize(rows_) == losses, "expected one value per row, but there are {} values for {} rows", losses,
                rows_.size());
  for (const int64_t text : texts)
    if (const Shape shape = shape_for(text); !programs_.contains(shape.length)) record(shape);
  runner.arena().seal();
}

// Halving the length and doubling the number of sequences keeps the number of rows, so rows split over ranks as evenly
// as in an evaluation. Ranks that share sequences divide each into segments.
Scorer::Shape Scorer::shape_for(int64_t text) const {
  Shape shape{runner_.micro_batch(), runner_.model().seq_len()};
  const int64_t segments = parallel::RowOrder::segments(runner_.sharding());
  while (shape.length % (2 * segments) == 0 && shape.length / 2 >= text) {
    shape.length /= 2;
    shape.sequences *= 2;
  }
  return shape;
}

void Scorer::record(const Shape& shape) {
  Program& program = programs_[shape.length];
  program.shape = shape;
  program.row_order = parallel::RowOrder(runner_.sharding(), shape.sequences, shape.length);
  program.order = runner_.on_device(program.row_order.rows());
  program.positions = runner_.on_device(program.row_order.positions());
  Meter uncounted;
  for (size_t chunk = 0; chunk < runner_.forward_passes().size(); ++chunk) {
    program.keys.push_back(format("score/{}{}", shape.length, chunk == 0 ? "" : format(", chunk {}", chunk)));
    runner_.record(
        program.keys.back(), [&](Exec& ex) { run(ex, program, chunk); }, uncounted);
  }
}

void Scorer::run(Exec& ex, const Program& program, size_t chunk) {
  const sharding::Action& action = runner_.forward_passes()[chunk];
  const parallel::Batch batch{.ids = ids_,
                              .targets = targets_,
                              .weights = weights_,
                              .order = program.order,
                              .positions = program.positions,
                              .sequences = program.shape.sequences,
                              .seq_len = program.shape.length};
  runner_.links().send(ex, action,
                       runner_.model().loss(ex, batch, {.loss = losses_, .margin = margins_},
                                            {chunk, runner_.links().take(ex, action)}));
}

Scorer::Scores Scorer::scores(const data::TokenBatch& host) {
  const auto found = programs_.find(host.seq_len);
  TRAINER_CHECK(found != programs_.end() && found->second.shape.sequences == host.sequences,
                "no program for {} sequences of {} tokens", host.sequences, host.seq_len);
  const Program& program = found->second;
  runner_.upload(host, program.row_order, {ids_, targets_, weights_});
  Exec ex = runner_.exec();
  runner_.links().begin_list(runner_.forward_passes());
  for (size_t chunk = 0; chunk < program.keys.size(); ++chunk) {
    runner_.links().begin(ex, chunk);
    runner_.begin(ex, program.keys[chunk]);
    run(ex, program, chunk);
    runner_.end();
  }
  runner_.links().end_list(ex);

  const int64_t sequences = program.shape.sequences, all = runner_.replicas() * sequences;
  std::vector<double> sums(static_cast<size_t>(2 * all));  // the losses, then the numbers of rows that are not greedy
  const HostCopy losses(ex.device, losses_), margins(ex.device, margins_);
  for (size_t i = 0; i < rows_.size(); ++i) {
    const std::vector<int32_t>& order = program.row_order.rows();
    const auto row = static_cast<size_t>(order.empty() ? rows_[i] : order[static_cast<size_t>(rows_[i])]);
    const auto at = static_cast<size_t>(runner_.replica() * sequences + static_cast<int64_t>(row) / host.seq_len);
    sums[at] += losses.tensor().span<double>()[i];
    if (host.weights[row] > 0 && !(margins.tensor().span<double>()[i] >= 0)) ++sums[static_cast<size_t>(all) + at];
  }
  constexpr auto kMost = static_cast<size_t>(RankScalars::kMost);
  for (size_t at = 0; at < sums.size(); at += kMost)
    runner_.scalars().sum_over_rows(std::span(sums).subspan(at, std::min(kMost, sums.size() - at)));
  Scores scores;
  scores.losses.assign(sums.begin(), sums.begin() + all);
  for (int64_t at = all; at < 2 * all; ++at) scores.greedy.push_back(sums[static_cast<size_t>(at)] == 0);
  return scores;
}

}  // namespace trainer::train
