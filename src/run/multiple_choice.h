#pragma once
// Multiple choice: a model takes, of several endings of a text, the one that it finds likeliest (Zellers et al. 2019,
// HellaSwag).
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "train/trainer.h"

namespace trainer::run {

struct Question {
  struct Choice {
    std::vector<int32_t> tokens;  // of context and ending
    int64_t scored = 0;           // how many tokens at the end count: those of the ending
    int64_t bytes = 0;            // of the ending's text, without the space before it; 0: not known
  };
  std::vector<Choice> choices;
  int64_t answer = 0;
};

/// Reads questions, at most `most` (0: all): JSON lines as HellaSwag's, with ctx, endings and label, which need a
/// tokenizer, or llm.c's files of tokens (magic 20240522). An ending is tokenized with its context and a space between
/// them. Its tokens are those behind the context's. Throws Code::data naming file and line, or question; Code::io when
/// a file cannot be read.
std::vector<Question> read_questions(const std::vector<std::string>& files, const data::Tokenizer* tokenizer,
                                     int64_t vocab, int64_t most);

/// Shares of questions answered rightly. The chosen ending has the highest log-likelihood: as it is, per token (what
/// llm.c and nanoGPT report), per byte (lm-evaluation-harness's acc_norm takes
/// characters; NaN where bytes are not known).
struct Accuracy {
  int64_t questions = 0;
  double raw = 0, per_token = 0, per_byte = 0;
  double loss = 0;           // nats per token of the right endings
  bool interrupted = false;  // stopped before the last question; the rest is then meaningless
};

/// Replicas share the questions. A text longer than the model loses its beginning. Of equal endings the first is
/// taken. `progress(done, questions)` is called between batches and returns false to stop. Collective; the result is on
/// every rank.
Accuracy answer_questions(train::Trainer& trainer, const std::vector<Question>& questions,
                          const std::function<bool(int64_t done, int64_t questions)>& progress);

}  // namespace trainer::run
