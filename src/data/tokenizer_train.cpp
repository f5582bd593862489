#include <sentencepiece_trainer.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "base/join.h"
#include "base/utf8.h"
#include "data/text_sample.h"
#include "data/tokenizer.h"

namespace trainer::data {
namespace {

constexpr size_t kLongestSentence = 4000;  // the library skips sentences of more than 4192 bytes
constexpr int64_t kFixedPieces = 260;      // <unk>, <s>, </s>, "\n" and the 256 bytes

// Characters in a row. Hardly any word of a language is as long; scripts without spaces have longer runs.
constexpr size_t kLongAsciiWord = 48, kLongOtherWord = 24;
constexpr size_t kMostInLongWords = size_t{2} << 20;  // letters
// Other characters take the library several times longer than ASCII letters, since neighbouring ones vary more.
constexpr size_t kLettersPerCharacter = 4;

/// Calls use(begin, size, letters) for each long word of a line: letters of ASCII, or other characters than ASCII's.
template <typename F>
void for_each_long_word(std::string_view line, F&& use) {
  const auto is_letter = [](char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; };
  const auto is_other = [](char c) { return (c & 0x80) != 0; };
  const auto starts_character = [](char c) { return (c & 0xC0) != 0x80; };
  for (size_t begin = 0; begin < line.size();) {
    const bool other = is_other(line[begin]);
    size_t end = begin;
    while (end < line.size() && (other ? is_other(line[end]) : is_letter(line[end]))) ++end;
    const auto characters =
        static_cast<size_t>(std::count_if(line.begin() + begin, line.begin() + end, starts_character));
    if (characters >= (other ? kLongOtherWord : kLongAsciiWord))
      use(begin, end - begin, other ? kLettersPerCharacter * characters : characters);
    begin = std::max(end, begin + 1);
  }
}

/// Removes long words, evenly over the text, until at most kMostInLongWords letters of them are left. The library's
/// time and memory grow with the letters of distinct words, which ordinary text repeats but the parts of one long word
/// are not.
void thin_out_long_words(std::vector<std::string>& lines) {
  size_t letters = 0, seen = 0, kept = 0;
  for (const std::string& line : lines)
    for_each_long_word(line, [&](size_t, size_t, size_t count) { letters += count; });
  if (letters <= kMostInLongWords) return;
  for (std::string& line : lines) {
    std::string rest;
    size_t copied = 0;
    for_each_long_word(line, [&](size_t begin, size_t size, size_t count) {
      seen += count;
      const bool keep = (kept + count) * letters <= seen * kMostInLongWords;
      if (keep) kept += count;
      rest += line.substr(copied, (keep ? begin + size : begin) - copied);
      copied = begin + size;
    });
    if (copied > 0) line = rest + line.substr(copied);
  }
  std::erase_if(lines, [](const std::string& line) { return line.empty(); });
}

/// Splits lines at U+2585. The library skips lines with it, since it represents unknown characters there.
void split_at_reserved(std::vector<std::string>& lines) {
  constexpr std::string_view kReserved = "\u2585";
  std::vector<std::string> parts;
  for (std::string& line : lines) {
    size_t at = line.find(kReserved);
    if (at == line.npos) continue;
    for (size_t begin = at + kReserved.size(); begin < line.size();) {
      const size_t end = std::min(line.find(kReserved, begin), line.size());
      if (end > begin) parts.push_back(line.substr(begin, end - begin));
      begin = end + kReserved.size();
    }
    line.resize(at);
  }
  lines.insert(lines.end(), std::make_move_iterator(parts.begin()), std::make_move_iterator(parts.end()));
  std::erase_if(lines, [](const std::string& line) { return line.empty(); });
}

class Sentences : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(const std::vector<std::string>& lines) : lines_(lines) {}
  bool done() const override { return at_ == lines_.size(); }
  void Next() override { ++at_; }
  const std::string& value() const override { return lines_[at_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& lines_;
  size_t at_ = 0;
};

/// Returns the length of a name of the vocabulary's symbols, such as "</s>" and "<0x41>", that the text begins with; 0:
/// none. The library learns nothing from them.
size_t symbol_name(std::string_view text) {
  for (const std::string_view name : {"<unk>", "<s>", "</s>"})
    if (text.starts_with(name)) return name.size();
  const auto digit = [&](size_t at) { return std::string_view("0123456789ABCDEF").find(text[at]) != text.npos; };
  return text.size() >= 6 && text.starts_with("<0x") && digit(3) && digit(4) && text[5] == '>' ? 6 : 0;
}

/// Returns the number of distinct characters that become pieces: all except tab and NUL, which stay bytes.
int64_t distinct_characters(const std::vector<std::string>& lines) {
  std::unordered_set<std::string_view> characters;
  for (const std::string& line : lines) {
    for (std::string_view rest = line; !rest.empty();) {
      const size_t name = rest[0] == '<' ? symbol_name(rest) : 0, length = name > 0 ? name : utf8_character(rest);
      if (name == 0 && rest[0] != '\t' && rest[0] != '\0') characters.insert(rest.substr(0, length));
      rest.remove_prefix(length);
    }
  }
  return static_cast<int64_t>(characters.size());
}

}  // namespace

Tokenizer Tokenizer::train(const std::vector<std::string>& files, int64_t vocab_size, const TextOptions& options,
                           int64_t max_bytes) {
  return train({TrainingText{files, options}}, vocab_size, max_bytes);
}

Tokenizer Tokenizer::train(const std::vector<TrainingText>& texts, int64_t vocab_size, int64_t max_bytes,
                           const std::vector<std::string>& control_symbols) {
  std::vector<std::string> lines;
  std::string first;
  for (const TrainingText& text : texts) {
    if (first.empty()) first = text.files.empty() ? "no file given" : text.files.front();
    const auto bytes = static_cast<int64_t>(text.share * static_cast<double>(max_bytes));
    if (bytes == 0) continue;
    std::vector<std::string> sample = sample_lines(text.files, text.options, bytes, kLongestSentence);
    lines.insert(lines.end(), std::make_move_iterator(sample.begin()), std::make_move_iterator(sample.end()));
  }
  split_at_reserved(lines);
  thin_out_long_words(lines);
  const int64_t characters = distinct_characters(lines), symbols = 4 + std::ssize(control_symbols),
                least = kFixedPieces - 4 + symbols + characters;
  if (characters == 0)
    throw Error(Code::data, fmt::format("{}: no text to train a tokenizer on, only tabs, U+2585 or names of symbols "
                                        "such as </s>; add text",
                                        first));
  if (vocab_size < least) {
    throw Error(Code::data,
                fmt::format("{}: data.vocab_size = {} is too small for a tokenizer of this text: its {} different "
                            "characters, 256 bytes and {} symbols need at least {}",
                            first, vocab_size, characters, symbols, least));
  }
  Sentences sentences(lines);
  std::string model;
  // Training uses one thread, since the library writes the number of threads into the model, which would otherwise
  // differ between machines.
  std::unordered_map<std::string, std::string> settings = {
      {"vocab_size", std::to_string(vocab_size)},
      {"model_type", "bpe"},
      {"byte_fallback", "true"},
      {"character_coverage", "1.0"},
      {"split_digits", "true"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"add_dummy_prefix", "false"},
      {"user_defined_symbols", "\n"},
      {"hard_vocab_limit", "false"},
      {"num_threads", "1"},
      {"minloglevel", "2"},
  };
  if (!control_symbols.empty()) settings["control_symbols"] = fmt::format("{}", fmt::join(control_symbols, ","));
  const auto status = sentencepiece::SentencePieceTrainer::Train(settings, &sentences, &model);
  if (!status.ok())
    throw Error(Code::data, fmt::format("{}: training the tokenizer failed: {}", first, status.ToString()));
  Tokenizer tokenizer = from_bytes(std::move(model), "the trained tokenizer");
  if (tokenizer.vocab_size() < vocab_size) {
    throw Error(Code::data, fmt::format("{}: data.vocab_size = {} is too large: this text yields at most {} different "
                                        "tokens; use at most {}, or add text",
                                        first, vocab_size, tokenizer.vocab_size(), tokenizer.vocab_size()));
  }
  return tokenizer;
}

}  // namespace trainer::data
