#pragma once
// Multiple choice: the model chooses the most likely of several endings of a text (HellaSwag, Zellers et al. 2019).
#include <cstdint>
#include <functional>
#include <vector>

#include "data/questions.h"
#include "train/model_runner.h"

namespace trainer::run {

using data::Question;

/// Fractions of questions answered correctly, if the chosen ending is the one with the highest log-likelihood:
/// unnormalized, per token (as reported by llm.c and nanoGPT), or per byte (lm-evaluation-harness's acc_norm uses
/// characters; NaN if the number of bytes is unknown).
struct Accuracy {
  int64_t questions = 0;
  int64_t truncated = 0;  // questions with a text longer than the context window
  double raw = 0, per_token = 0, per_byte = 0;
  double loss = 0;           // nats per token of the correct endings
  bool interrupted = false;  // stopped before the last question; the other members are then meaningless
};

/// Answers the questions, which are divided among the replicas. A text longer than the context window is truncated at
/// the beginning. In case of a tie the first ending is chosen. `progress(done, questions)` is called between batches
/// and returns false to stop. Collective; every rank returns the result.
Accuracy answer_questions(train::ModelRunner& runner, const std::vector<Question>& questions,
                          const std::function<bool(int64_t done, int64_t questions)>& progress);

}  // namespace trainer::run
