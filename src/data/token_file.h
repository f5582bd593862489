#pragma once
// Token files: several files as one stream of tokens, of which the parts that are used are read.
//
// Formats that are read (recognized by their contents):
//   llm.c      1024-byte header of 256 int32: magic 20240520 (version 1, uint16 tokens) or 20240801 (version 7, uint32
//              tokens), then the token count;
//   Megatron   X.bin without header next to X.idx, which starts with "MMIDIDX\0\0" (version 1; 16- or 32-bit tokens);
//   nanoGPT    .bin without header: uint16.
// The llm.c format is written. Header words that other programs leave 0 store additional fields: [3] the high half of
// the token count (llm.c's own count has 32 bits), [4] the vocabulary, [5] the end-of-text token + 1, [6]–[9] the
// tokenizer's hash, [10] the token that begins each document + 1 (0: none), [11] 1 if X.spans lists the counted tokens.
// The document index X.docs and X.spans (positions.h) are next to X.bin. All little-endian.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/files.h"

namespace trainer::data {

constexpr int64_t kTokenHeaderBytes = 1024;
constexpr int64_t kGpt2Vocabulary = 50257;

/// The fields of the header of a written token file.
struct TokenFileInfo {
  int64_t tokens = 0;
  int64_t vocab_size = 0;      // 0: not known
  int32_t eos = -1;            // −1: not known
  std::string tokenizer_hash;  // empty: not known
  int32_t bos = -1;            // begins each document; −1: none, or not known
  bool spans = false;          // only the tokens of X.spans are counted as targets
};

/// Returns the bytes per token on disk for a vocabulary: 2 or 4.
int token_width(int64_t vocab_size);
/// Returns the 1024-byte header.
std::string token_header(const TokenFileInfo& info);
/// Returns what documents begin with, for messages: "token 1", "no BOS token".
std::string bos_text(int32_t bos);

/// Tokens [begin, end) of a file, and the first and last of its documents in them, counted from 0; -1: the file has no
/// document index.
struct FileSpan {
  std::string file;
  int64_t begin = 0, end = 0;
  int64_t first_document = -1, last_document = -1;
};

/// Tokens [begin, end) of a stream.
struct TokenRange {
  int64_t begin = 0, end = 0;
  bool operator==(const TokenRange&) const = default;
};

/// A read-only view of consecutive tokens of one or more token files as one stream; 16 or 32 bits per token on disk.
class TokenStream {
 public:
  /// Throws Code::data, naming file and offset, when a file is missing, empty, truncated, or does not match its index.
  /// The same holds when files of different vocabularies, tokenizers or BOS tokens are joined, or files with and
  /// without loss spans.
  explicit TokenStream(const std::vector<std::string>& files);
  ~TokenStream();
  TokenStream(const TokenStream&) = delete;
  TokenStream& operator=(const TokenStream&) = delete;

  int64_t tokens() const { return tokens_; }
  /// Returns a name for messages: "train.bin", "a.bin and 3 more".
  std::string name() const;
  /// Returns the fields of headers, if known: the vocabulary size (llm.c's GPT-2 files: 50257), end-of-text token and
  /// tokenizer.
  const TokenFileInfo& info() const { return info_; }

  // Functions that read tokens throw Code::data when a file was truncated since it was opened, so that it lacks them.
  /// True if no file was truncated since it was opened. Queries the system.
  bool is_whole() const;
  /// Throws Code::data, naming the file and its sizes, if one was.
  void require_whole() const;
  /// Copies tokens [begin, begin + out.size()) to `out`; they must exist. Throws Code::data naming file and offset for
  /// a token outside the vocabulary limit, if one is set.
  void copy(int64_t begin, std::span<int32_t> out) const;
  /// Makes all later calls of copy() reject tokens >= vocab_size.
  void limit_vocabulary(int64_t vocab_size) { vocab_limit_ = vocab_size; }
  /// Reads everything once; throws Code::data naming file and offset of the first token >= vocab_size.
  void check_vocabulary(int64_t vocab_size, int threads) const;
  /// Adds the occurrences of each token of [begin, end) to counts; tokens must be < counts.size().
  void count(int64_t begin, int64_t end, std::span<int64_t> counts) const;
  /// Asks the system to prefetch [begin, end).
  void prefetch(int64_t begin, int64_t end) const;

  /// Returns the position nearest to `position`, at most `distance` away, where a document ends. Document ends come
  /// from the document index if there is one; else they are after an end-of-text token, else at the end of a file.
  std::optional<int64_t> document_end_near(int64_t position, int64_t distance) const;
  /// True if each file has a document index, or the end-of-text token is known.
  bool has_documents() const;
  /// Makes append_starts() end documents with this token in files without header and index.
  void end_documents_with(int32_t token) { separator_ = token; }
  /// Returns the token after which documents end in files without an index; −1: not known.
  int32_t separator() const { return info_.eos >= 0 ? info_.eos : separator_; }
  /// Appends the positions in `ids` (the tokens from position `begin`) at which documents begin, plus `row`. A
  /// document begins at the start of a file and where the previous one ends, as in document_end_near(), which does not
  /// use the token of end_documents_with(): the split of a run's validation data must not move.
  void append_starts(int64_t begin, std::span<const int32_t> ids, int64_t row, std::vector<int64_t>& starts) const;

  /// Calls use(first, last) for the parts in [begin, end) of documents, in order, without empty ones. Documents end as
  /// in append_starts().
  void for_each_document(int64_t begin, int64_t end, const std::function<void(int64_t, int64_t)>& use) const;

  /// True if the files have loss spans: then not every token is counted as a target.
  bool has_spans() const { return info_.spans; }
  /// Appends the runs of counted tokens in [begin, end), in order. A file without spans is one run.
  void append_spans(int64_t begin, int64_t end, std::vector<TokenRange>& spans) const;
  /// Returns the counted tokens in [begin, end), in time proportional to their runs.
  int64_t counted(int64_t begin, int64_t end) const;

  /// Returns the parts of files that [begin, end) consists of.
  std::vector<FileSpan> files_of(int64_t begin, int64_t end) const;

  /// Returns the XXH3-128 over sizes, header fields and evenly spaced blocks of tokens and loss spans in each file
  /// (4 KiB each, 256 per file, and both ends). It distinguishes files in constant time; a change between the blocks is
  /// not detected. `with_documents`: also over what ends documents: blocks of the index, or the token.
  std::string fingerprint(bool with_documents = false) const;

 private:
  struct Segment;
  const Segment& segment_at(int64_t position) const;
  template <typename F>
  void for_each_span(int64_t begin, int64_t end, F&& fn) const;
  template <typename F>
  void for_each_block(int64_t begin, int64_t end, F&& fn) const;
  template <typename F>
  void for_each_counted(int64_t begin, int64_t end, F&& fn) const;

  std::vector<std::unique_ptr<Segment>> segments_;
  int64_t tokens_ = 0;
  TokenFileInfo info_;
  int32_t separator_ = -1;
  int64_t vocab_limit_ = 0;
};

}  // namespace trainer::data
