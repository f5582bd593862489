#pragma once
// Multiple choice: of several endings of a text, the model chooses the most likely one (Zellers et al. 2019,
// HellaSwag).
#include <cstdint>
#include <functional>
#include <vector>

#include "data/questions.h"
#include "train/trainer.h"

namespace trainer::run {

using data::Question;

/// Shares of questions answered correctly. The chosen ending has the highest log-likelihood: unnormalized, per token
/// (as reported by llm.c and nanoGPT), per byte (lm-evaluation-harness's acc_norm uses characters; NaN if bytes are not
/// known).
struct Accuracy {
  int64_t questions = 0;
  int64_t truncated = 0;  // questions with a text longer than the model
  double raw = 0, per_token = 0, per_byte = 0;
  double loss = 0;           // nats per token of the right endings
  bool interrupted = false;  // stopped before the last question; the rest is then meaningless
};

/// Replicas share the questions. A text longer than the context window loses its beginning. In case of a tie the first
/// ending is chosen. `progress(done, questions)` is called between batches and returns false to stop. Collective; the
/// result is on every rank.
Accuracy answer_questions(train::Trainer& trainer, const std::vector<Question>& questions,
                          const std::function<bool(int64_t done, int64_t questions)>& progress);

}  // namespace trainer::run
