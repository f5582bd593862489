#include "train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "data/statistics.h"

namespace trainer::train {

Evaluation evaluate(Trainer& trainer, const data::TokenDataset& dataset, int64_t groups,
                    const data::Tokenizer* tokenizer, const std::function<bool(int64_t, int64_t)>& progress) {
  const int64_t all = dataset.windows();
  const int64_t windows = groups == 0 ? all : std::min(all, groups * trainer.config().train.global_batch);
  Evaluation result;
  data::TokenBatch batch;
  double nats = 0;
  int64_t tokens = 0, bytes = 0;
  for (int64_t window = 0; window < windows; window += trainer.micro_batch()) {
    if (progress && !progress(window, windows)) {
      result.interrupted = true;
      return result;
    }
    dataset.eval_batch(window, trainer.micro_batch(), batch);
    // Windows past the chosen set share the last micro-batch's shape but do not count.
    const int64_t counted = std::min(trainer.micro_batch(), windows - window) * batch.seq_len;
    std::fill(batch.weights.begin() + counted, batch.weights.end(), 0.0f);
    nats += trainer.loss_sum(batch);
    for (int64_t row = 0; row < counted; ++row) tokens += batch.weights[static_cast<size_t>(row)] != 0;
    if (tokenizer != nullptr) bytes += data::evaluated_bytes(*tokenizer, batch);
  }
  result.report.tokens = tokens;
  result.report.loss = nats / static_cast<double>(tokens);
  result.report.perplexity = std::exp(result.report.loss);
  if (bytes > 0) result.report.bits_per_byte = nats / std::numbers::ln2 / static_cast<double>(bytes);
  return result;
}

}  // namespace trainer::train
