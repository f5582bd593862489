#pragma once
// Multiple-choice questions: a context, several endings, and the index of the right one (Zellers et al. 2019,
// HellaSwag).
#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace trainer::data {

struct Question {
  struct Choice {
    std::vector<int32_t> tokens;  // tokens of context and ending
    int64_t scored = 0;           // number of scored tokens at the end: the tokens of the ending
    int64_t bytes = 0;            // bytes of the ending's text, without the space before it; 0: unknown
  };
  std::vector<Choice> choices;
  int64_t answer = 0;
};

/// The largest number of endings per question; each is stored with the whole context.
inline constexpr size_t kMostChoices = 64;

/// Reads questions, at most `most` (0: all): JSON lines as in HellaSwag, with ctx, endings and label, which need a
/// tokenizer, or llm.c's token files (magic 20240522). An ending is tokenized together with its context and a space
/// between them. Its tokens are those after the context's. Throws Code::data naming file and line, or question;
/// Code::io when a file cannot be read.
std::vector<Question> read_questions(const std::vector<std::string>& files, const Tokenizer* tokenizer, int64_t vocab,
                                     int64_t most);

}  // namespace trainer::data
