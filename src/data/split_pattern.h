#pragma once
// Splits text into the words within which BPE joins symbols, by regular expressions as in tokenizer.json (PCRE2).
#include <memory>
#include <string>
#include <string_view>

namespace trainer::data {

/// GPT-2's pattern: contractions, letters, digits and the rest, each with the space before it; spaces that end a text
/// or a line stay together.
extern const std::string_view kGpt2Pattern;
/// The pattern of OpenAI's cl100k vocabulary.
extern const std::string_view kCl100kPattern;
/// The pattern of Qwen 2 and 3.
extern const std::string_view kQwen2Pattern;

/// A compiled expression. Threads may share it.
class SplitPattern {
 public:
  /// In `expression`, "\s" means Unicode's White_Space, as in other libraries; PCRE2's also includes U+180E. Throws
  /// Code::data, naming `origin`, if the expression is not well-formed.
  SplitPattern(std::string_view expression, const std::string& origin);

  /// Scratch memory of one thread for matching this pattern.
  class Matcher {
   public:
    explicit Matcher(const SplitPattern& pattern);

    /// Finds the first non-empty match that begins at or after `from`; returns false if there is none. `text` must be
    /// valid UTF-8. Throws Code::data if matching takes too long, which some patterns can cause.
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
