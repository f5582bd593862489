#include "run/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "data/statistics.h"

namespace trainer::run {

Evaluation evaluate(train::Trainer& trainer, const data::TokenDataset& dataset, int64_t groups,
                    const data::Tokenizer* tokenizer, const std::function<bool(int64_t, int64_t)>& progress) {
  const int64_t all = dataset.windows();
  const int64_t windows = groups == 0 ? all : std::min(all, groups * trainer.config().train.global_batch);
  const int64_t micro_batch = trainer.micro_batch(), round = micro_batch * trainer.replicas();
  Evaluation result;
  data::TokenBatch batch;
  double sums[3] = {};  // nats, tokens, bytes
  auto& [nats, tokens, bytes] = sums;
  // Replicas take micro-batches in turn. In the last round, windows beyond the chosen set fill the shape but do not
  // count.
  for (int64_t first = 0; first < windows; first += round) {
    const bool go_on = !progress || progress(first, windows);
    if (trainer.scalars().is_true_on_any_rank(!go_on)) {
      result.interrupted = true;
      return result;
    }
    const int64_t window = first + trainer.replica() * micro_batch;
    dataset.eval_batch(window, micro_batch, batch);
    const int64_t counted = std::clamp<int64_t>(windows - window, 0, micro_batch) * batch.seq_len;
    std::fill(batch.weights.begin() + counted, batch.weights.end(), 0.0f);
    nats += trainer.loss_sum(batch);
    if (!trainer.scalars().is_first_of_replica()) continue;
    for (int64_t row = 0; row < counted; ++row) tokens += batch.weights[static_cast<size_t>(row)] != 0;
    if (tokenizer != nullptr) bytes += static_cast<double>(data::evaluated_bytes(*tokenizer, batch));
  }
  trainer.scalars().sum_over_rows(sums);
  result.report.tokens = static_cast<int64_t>(tokens);
  result.report.loss = nats / tokens;
  result.report.perplexity = std::exp(result.report.loss);
  if (bytes > 0) result.report.bits_per_byte = nats / std::numbers::ln2 / bytes;
  return result;
}

}  // namespace trainer::run
