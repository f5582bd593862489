#pragma once
// Packing: documents are put into training windows whole where they fit. The result is an index next to the tokens,
// X.pack; the tokens stay where they are.
//
// The index has a header of 12 words (u64) and two tables, all little-endian. The words: "trnpack1", the version,
// windows W, excerpts P, seq_len, the packed part of the stream (begin, end), the stream's fingerprint (two words),
// Σ lengths, and how many conversations were cut and left out. Then W + 1 times {first excerpt, counted targets before}
// (u64), and P times {begin (u64), length (u32), flags (u32; 1: a continuation)}.
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "base/interruptible.h"
#include "data/token_file.h"

namespace trainer::data {

/// Tokens [begin, begin + length) of a stream within a window. A continuation begins with the last token of the
/// excerpt before it in its document, which that excerpt already predicts.
struct Excerpt {
  int64_t begin = 0, length = 0;
  bool continues = false;
  int64_t end() const { return begin + length; }
  bool operator==(const Excerpt&) const = default;
};

/// Returns the window of each excerpt by best fit decreasing: the longest first, each into the open window with the
/// least room that is enough (among equals, the one that got this room first), else into a new one. Windows are
/// numbered by their first excerpt. `lengths` are from 1 to `capacity`.
std::vector<uint32_t> best_fit(const std::vector<uint32_t>& lengths, int64_t capacity);

/// An index of packed windows. Functions throw Code::data when the file is damaged or was truncated. Thread-safe.
class PackingIndex {
 public:
  /// Opens an index that packing_index() wrote.
  explicit PackingIndex(const std::filesystem::path& path);

  int64_t windows() const { return word(2); }
  /// Returns the tokens of all excerpts.
  int64_t tokens() const { return word(9); }
  /// Return how many conversations are longer than a window, so that their ends are left out, and how many are left out
  /// because no token of theirs would count.
  int64_t cut() const { return word(10); }
  int64_t left_out() const { return word(11); }
  /// Returns the excerpts of a window, in the order of the stream. The window is shorter than seq_len + 1 tokens if
  /// they are.
  std::vector<Excerpt> excerpts(int64_t window) const;
  /// Returns the counted targets of windows [first, last). Each window has at least one.
  int64_t counted(int64_t first, int64_t last) const;
  /// True if this is the index of tokens [begin, end) of a stream with this fingerprint, which covers its documents.
  bool is_of(const std::string& fingerprint, int64_t seq_len, int64_t begin, int64_t end) const;

 private:
  int64_t word(size_t at) const { return header_[at]; }
  std::array<int64_t, 2> entry(int64_t window) const;

  InputFile file_;
  std::array<int64_t, 12> header_ = {};
};

/// Returns the index `known` if it is that of tokens [begin, end) of the stream in windows of seq_len + 1 tokens; else
/// makes one at place(). Documents of text are divided into excerpts of at most seq_len + 1 tokens; of a conversation
/// (the stream has loss spans) only the first seq_len + 1 tokens are used. `block`: excerpts that are packed together.
/// Throws Interrupted, and Code::data if the ends of documents are not known or no target counts.
std::shared_ptr<const PackingIndex> packing_index(const std::shared_ptr<const TokenStream>& stream, int64_t seq_len,
                                                  int64_t begin, int64_t end, const std::filesystem::path& known,
                                                  const std::function<std::filesystem::path()>& place,
                                                  const Watch& watch, int64_t block = int64_t{1} << 20);

}  // namespace trainer::data
