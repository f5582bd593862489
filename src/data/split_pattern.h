#pragma once
// Cutting text into the words that BPE joins symbols in: by regular expressions, as tokenizer.json has them (PCRE2).
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace trainer::data {

/// GPT-2's: contractions, letters, digits and the rest, each with the space before it; spaces that end a text or a line
/// stay together.
extern const std::string_view kGpt2Pattern;
/// The pattern of OpenAI's cl100k vocabulary.
extern const std::string_view kCl100kPattern;

/// A compiled expression. Threads may share it.
class SplitPattern {
 public:
  /// "\s" means White_Space of Unicode, as in other libraries; in PCRE2 it also means U+180E. Throws Code::data, naming
  /// `origin`, when the expression is not well-formed.
  SplitPattern(std::string_view expression, const std::string& origin);

  /// Scratch memory of one thread that matches this pattern.
  class Matcher {
   public:
    explicit Matcher(const SplitPattern& pattern);

    /// Finds the first match that begins at `from` or later and is not empty. `text` is valid UTF-8. False: there is
    /// none. Throws Code::data where matching takes too long: such patterns exist.
    bool find(std::string_view text, size_t from, size_t& begin, size_t& end) const;

   private:
    struct State;
    std::shared_ptr<State> state_;
  };

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace trainer::data
