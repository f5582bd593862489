#include "run/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include "base/checksum.h"
#include "data/statistics.h"

namespace trainer::run {
namespace {

int64_t windows_in(const data::TokenDataset& dataset, int64_t stride) {
  if (stride == 0) return dataset.windows();
  const int64_t behind_the_first = std::max<int64_t>(0, dataset.tokens() - 1 - dataset.seq_len());
  return 1 + (behind_the_first + stride - 1) / stride;
}

/// Returns the number of windows that are evaluated.
int64_t chosen_windows(const config::Config& config, const data::TokenDataset& dataset, const EvalWindows& chosen) {
  const int64_t all = windows_in(dataset, chosen.stride), group = config.train.global_batch;
  return chosen.groups == 0 || chosen.groups > all / group ? all : chosen.groups * group;
}

/// Fills `out` with sliding windows, starting at window `first`. Rows that an earlier window already predicts and rows
/// past the end of the data have weight 0.
void sliding_batch(const data::TokenDataset& dataset, int64_t stride, int64_t first, int64_t sequences,
                   data::TokenBatch& out) {
  const int64_t length = dataset.seq_len(), predictions = dataset.tokens() - 1;
  out.resize(sequences, length);
  std::ranges::fill(out.ids, 0);
  std::ranges::fill(out.targets, 0);
  std::ranges::fill(out.weights, 0.0f);
  for (int64_t i = 0; i < sequences; ++i) {
    const int64_t begin = (first + i) * stride, rows = std::clamp<int64_t>(predictions - begin, 0, length);
    const int64_t seen = first + i == 0 ? 0 : std::min(rows, length - stride);
    if (rows == 0) continue;
    const std::span ids(out.ids.data() + i * length, rows), targets(out.targets.data() + i * length, rows);
    dataset.stream().copy(dataset.begin() + begin, ids);
    dataset.stream().copy(dataset.begin() + begin + 1, targets);
    dataset.stream().append_starts(dataset.begin() + begin, ids, i * length, out.starts);
    std::fill_n(out.weights.begin() + i * length + seen, rows - seen, 1.0f);
  }
}

}  // namespace

std::string evaluated_data(const config::Config& config, const data::NamedDataset& set, const EvalWindows& windows) {
  return to_string(checksum_of(format("{} {} {} {} {}", set.hash, chosen_windows(config, set.dataset, windows),
                                      windows.stride, set.dataset.seq_len(), config.data.separates())));
}

Evaluation evaluate(train::ModelRunner& runner, const data::TokenDataset& dataset, const EvalWindows& chosen,
                    const data::Tokenizer* tokenizer, const std::function<bool(int64_t, int64_t)>& progress) {
  const int64_t windows = chosen_windows(runner.config(), dataset, chosen);
  const int64_t micro_batch = runner.micro_batch(), round = micro_batch * runner.replicas();
  Evaluation result;
  std::vector<data::TokenBatch> batches(static_cast<size_t>(runner.batches_at_once()));
  // The counted tokens of a set with loss spans are not the whole of a text.
  const bool has_bytes = tokenizer != nullptr && !dataset.stream().has_spans();
  double sums[3] = {};  // nats, tokens, bytes
  auto& [nats, tokens, bytes] = sums;
  // Micro-batches are assigned to replicas round-robin. In the last round, windows beyond the chosen ones pad the batch
  // and have weight 0.
  for (int64_t first = 0; first < windows; first += round * std::ssize(batches)) {
    const bool go_on = !progress || progress(first, windows);
    if (runner.scalars().is_true_on_any_rank(!go_on)) {
      result.interrupted = true;
      return result;
    }
    batches.resize(std::min(batches.size(), static_cast<size_t>(divide_up(windows - first, round))));
    int64_t window = first + runner.replica() * micro_batch;
    for (data::TokenBatch& batch : batches) {
      if (chosen.stride == 0) {
        dataset.eval_batch(window, micro_batch, batch);
      } else {
        sliding_batch(dataset, chosen.stride, window, micro_batch, batch);
      }
      const int64_t counted = std::clamp<int64_t>(windows - window, 0, micro_batch) * batch.seq_len;
      std::fill(batch.weights.begin() + counted, batch.weights.end(), 0.0f);
      window += round;
    }
    for (const double sum : runner.loss_sums(batches)) nats += sum;
    if (!runner.scalars().is_first_of_replica()) continue;
    for (const data::TokenBatch& batch : batches) {
      tokens += static_cast<double>(std::ranges::count_if(batch.weights, [](float weight) { return weight != 0; }));
      if (has_bytes) bytes += static_cast<double>(data::evaluated_bytes(*tokenizer, batch));
    }
  }
  runner.scalars().sum_over_rows(sums);
  result.report.tokens = static_cast<int64_t>(tokens);
  result.report.loss = nats / tokens;
  result.report.perplexity = std::exp(result.report.loss);
  if (bytes > 0) result.report.bits_per_byte = nats / std::numbers::ln2 / bytes;
  return result;
}

Evaluation evaluate_sets(train::ModelRunner& runner, const std::vector<data::NamedDataset>& sets, size_t followed,
                         const EvalWindows& windows, const data::Tokenizer* tokenizer,
                         const std::function<bool(int64_t, int64_t)>& progress) {
  Evaluation result;
  std::vector<report::SetReport> each;
  for (size_t i = 0; i < sets.size(); ++i) {
    Evaluation one = evaluate(runner, sets[i].dataset, windows, tokenizer, progress);
    if (one.interrupted) return one;
    one.report.data = evaluated_data(runner.config(), sets[i], windows);
    if (i == followed) result = one;
    const report::EvalReport& r = one.report;
    if (!sets[i].name.empty()) each.push_back({sets[i].name, r.loss, r.perplexity, r.bits_per_byte, r.tokens, r.data});
  }
  if (!each.empty()) result.report.set = sets[followed].name;
  result.report.sets = std::move(each);
  return result;
}

}  // namespace trainer::run
