#pragma once
// Reference values for a loss.
#include <cstdint>

#include "data/tokenizer.h"
#include "data/training_data.h"

namespace trainer::data {

/// Returns the cross-entropy, in nats per token, of the tokens that evaluation predicts in `val`. Probabilities are the
/// token frequencies of `train`, with one added to each count; those of several sources are averaged by the slots of
/// the last phase. A model is better than that only if it uses context. Very long training data is sampled (2^28
/// tokens in evenly spaced blocks). The result does not depend on `threads`.
double unigram_entropy(const TrainingData& train, const TokenDataset& val, int64_t vocab_size, int threads);

/// Returns the number of bytes of text that the targets of a batch's unmasked rows represent. Bits per byte = total
/// loss in nats / (ln 2 · bytes).
int64_t evaluated_bytes(const Tokenizer& tokenizer, const TokenBatch& batch);

}  // namespace trainer::data
