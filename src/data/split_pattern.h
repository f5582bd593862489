#pragma once
// Splits text into the words within which BPE joins symbols, by regular expressions as in tokenizer.json.
#include <memory>
#include <string>
#include <string_view>

namespace trainer::data {

/// GPT-2's pattern: contractions, letters, digits and the rest, each with the space before it; spaces that end a text
/// or a line stay together.
extern const std::string_view kGpt2Pattern;
/// Llama 3's pattern, which transformers' fast tokenizers also use for OpenAI's cl100k vocabulary.
extern const std::string_view kLlama3Pattern;
/// The pattern of OpenAI's cl100k vocabulary as tiktoken matches it: spaces and line ends that end a text are one word.
extern const std::string_view kCl100kPattern;
/// The pattern of Qwen 2 and 3.
extern const std::string_view kQwen2Pattern;

/// A compiled expression. Threads may share it.
class SplitPattern {
 public:
  /// `expression` is in the syntax of Oniguruma, as in tokenizer.json, and means what it means to the tokenizers
  /// library 0.23 (Unicode 16), whichever version of PCRE2 matches it. Throws Code::data, naming `origin`, if it is not
  /// well-formed or not supported.
  SplitPattern(std::string_view expression, const std::string& origin);

  /// Finds the matches of one text after another, for one thread.
  class Matcher {
   public:
    explicit Matcher(const SplitPattern& pattern);

    /// Begins with `text`, which must be valid UTF-8 and remain in memory.
    void start(std::string_view text);

    /// Finds the next match; returns false if there is none. A match may be empty, but not where the previous one
    /// ended. Throws Code::data if matching takes too long, which some patterns can cause.
    bool next(size_t& begin, size_t& end);

   private:
    struct State;
    std::shared_ptr<State> state_;
  };

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace trainer::data
