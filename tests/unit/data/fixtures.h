#pragma once
// Helpers of the tests of data/: random text, a tokenizer trained once.
#include <random>

#include "data/files.h"
#include "data/tokenizer.h"
#include "rigs/files.h"
#include "rigs/messages.h"

namespace trainer::data::testing {

namespace fs = std::filesystem;

using tests::expect_error;
using tests::expect_parts;
using tests::TempFolder;
using tests::write;

/// Returns the text of the novel in data/.
inline const std::string& novel() {
  static const std::string text = read_file(std::string(TRAINER_SOURCE_DIR) + "/data/austen.txt");
  return text;
}

/// Returns a tokenizer with 600 tokens, trained on the first 100 kB of the novel.
inline const Tokenizer& small_tokenizer() {
  static const Tokenizer tokenizer = [] {
    TempFolder folder;
    return Tokenizer::train({write(folder / "text.txt", novel().substr(0, 100'000))}, 600);
  }();
  return tokenizer;
}

using Random = std::mt19937_64;
inline int64_t pick(Random& random, int64_t below) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(below));
}

/// Returns valid UTF-8 of about `length` bytes: words of the novel, unusual spaces, newlines, other scripts, strings
/// that are special to tokenizers.
inline std::string random_text(Random& random, int64_t length) {
  static const std::vector<std::string> odd = {
      " ",   "  ",      "\n",     "\n\n",       "\r\n",         "\t",
      "\r",  "日本語",  "é",      "e\u0301",    "\U0001F600",   "\U0001F468\u200D\U0001F469",
      "▁",   "\u2581a", "<s>",    "</s>",       "<unk>",        "<0x41>",
      "ﷺ",   "\u00a0",  "\ufeff", "0123456789", "\u2028",       "▅",
      "...", "-",       "\x7f",   "\x01",       "{\"a\": [1]}", "https://x.org/?q=1",
      "ÅÄÖ", "ß",       "ı",      "Ω≈ç"};
  std::string text;
  while (static_cast<int64_t>(text.size()) < length) {
    if (pick(random, 3) == 0) {
      text += odd[static_cast<size_t>(pick(random, static_cast<int64_t>(odd.size())))];
    } else {
      text += novel().substr(static_cast<size_t>(pick(random, 1'000'000)), static_cast<size_t>(pick(random, 40)));
    }
  }
  return text;
}

inline std::string random_bytes(Random& random, int64_t length) {
  std::string bytes;
  for (int64_t i = 0; i < length; ++i) bytes.push_back(static_cast<char>(random() & 0xFF));
  return bytes;
}

/// Returns the little-endian bytes of numbers as type T.
template <typename T, typename List>
std::string packed(const List& numbers) {
  std::string bytes;
  for (const auto number : numbers) {
    const T value = static_cast<T>(number);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return bytes;
}

}  // namespace trainer::data::testing
