#pragma once
// What the tests of data/ share: folders that vanish, random text, a tokenizer trained once.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/files.h"
#include "data/tokenizer.h"

namespace trainer::data::testing {

namespace fs = std::filesystem;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "data-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

inline std::string write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path.string();
}

/// The novel the project ships.
inline const std::string& novel() {
  static const std::string text = read_file(std::string(TRAINER_SOURCE_DIR) + "/data/austen.txt");
  return text;
}

/// 600 pieces trained on the first 100 kB of the novel.
inline const Tokenizer& small_tokenizer() {
  static const Tokenizer tokenizer = [] {
    TemporaryFolder folder;
    return Tokenizer::train({write(folder / "text.txt", novel().substr(0, 100'000))}, 600);
  }();
  return tokenizer;
}

using Random = std::mt19937_64;
inline int64_t pick(Random& random, int64_t below) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(below));
}

/// Valid UTF-8 of about `length` bytes: words of the novel, odd spaces, lines, other scripts, marks that mean something
/// to tokenizers.
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

/// Expects fn to throw an Error of this kind whose message holds every one of `parts`.
template <typename F>
void expect_error(Code code, const std::vector<std::string>& parts, F&& fn) {
  try {
    fn();
    ADD_FAILURE() << "no error was thrown; expected one about " << (parts.empty() ? "" : parts.front());
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "\"" << part << "\" is not in: " << error.what();
    }
  }
}

/// Little-endian bytes of numbers of type T.
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
