// Questions of tasks, as JSON lines or as llm.c's tokens, and prompts. Accepted questions can be answered, and
// prompts are written back unchanged.
#include "data/tasks.h"

#include <nlohmann/json.hpp>

#include "data/bpe_file.h"
#include "data/prompts.h"
#include "fuzz.h"
#include "rigs/files.h"

using namespace trainer;

namespace {

/// Single bytes and one merge: endings may change the tokens of their context.
const data::Tokenizer& tokenizer() {
  static const data::Tokenizer made =
      data::Tokenizer::from_bytes(data::json_of_gpt2(std::nullopt, "Ġ b\n", "v", "m"), "x");
  return made;
}

void check(const data::Question& question) {
  const auto choices = static_cast<int64_t>(question.choices.size());
  TRAINER_CHECK(choices >= 1 && question.choices.size() <= data::kMostChoices, "{} choices", choices);
  TRAINER_CHECK(question.answer >= 0 && question.answer < choices, "the answer {}", question.answer);
  for (const data::Question::Choice& choice : question.choices) {
    TRAINER_CHECK(choice.scored >= 1 && choice.scored < static_cast<int64_t>(choice.tokens.size()), "{} of {} tokens",
                  choice.scored, choice.tokens.size());
    for (const int32_t token : choice.tokens)
      TRAINER_CHECK(token >= 0 && token < tokenizer().vocab_size(), "token {}", token);
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tests::TempFolder folder;
  const std::string_view text = fuzz::text_of(data, size);
  const std::string path = folder / "questions";
  tests::write(path, text);
  for (const auto metric : {config::Metric::acc_norm, config::Metric::core})
    for (const data::Tokenizer* with : {&tokenizer(), static_cast<const data::Tokenizer*>(nullptr)}) {
      fuzz::accepted({Code::data}, [&] {
        for (const data::Question& question :
             data::read_questions({.files = {path}, .metric = metric}, with, tokenizer().vocab_size()))
          check(question);
      });
    }
  fuzz::accepted({Code::data}, [&] {
    std::string again;
    const auto prompts = data::read_prompts(text, "p");
    for (const trainer::data::Prompt& prompt : prompts) again += prompt.line + "\n";
    TRAINER_CHECK(data::read_prompts(again, "p") == prompts, "read back otherwise: {}", again);
  });
  return 0;
}
