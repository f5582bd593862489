#pragma once
// Tokenizing turns text files into a token file: in parallel, in bounded memory, resumable. The output is a pure
// function of the texts, the tokenizer and the options: thread count, interruptions and piece size leave no trace in
// it.
//
// NAME.bin, NAME.docs and NAME.json (the manifest, written last) appear whole or not at all. Until then NAME.work/
// holds the work done so far; the next call resumes from it.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/text.h"
#include "data/tokenizer.h"

namespace trainer::data {

struct TokenizeProgress {
  int64_t bytes = 0, total_bytes = 0;  // of the files as they are on the disk; no total for a pipe
  int64_t tokens = 0;
};

struct TokenizeOptions {
  TextOptions text;
  bool anew = false;  // existing output is ignored
  int threads = 1;
  int64_t piece_bytes = kPieceBytes;
  int64_t sync_bytes = int64_t{256} << 20;                // text between two points an interruption goes back to
  std::function<bool()> stop;                             // polled; true: save the work done so far and return
  std::function<void(const TokenizeProgress&)> progress;  // called after each piece
};

struct TokenizeResult {
  std::filesystem::path tokens_file;
  bool finished = true;  // false: stopped; call again to resume
  bool reused = false;   // the finished output was there already
  int64_t tokens = 0, documents = 0;
  int64_t text_bytes = 0;      // of the documents, after repair
  int64_t replaced = 0;        // invalid UTF-8 bytes
  std::string first_replaced;  // "file: offset n" of the first of them
};

/// Finds the finished output of these texts, tokenizer and options. Its manifest must name the same texts by size and
/// content. Unchanged modification times are trusted, and missing texts count as they were, with a warning. Its files
/// must have the manifest's checksums (files beyond 4 GiB: their fingerprint). Returns nothing otherwise, with a
/// warning when the files are damaged. Writes nothing.
std::optional<TokenizeResult> find_tokens(const std::vector<std::string>& files, const Tokenizer& tokenizer,
                                          const std::filesystem::path& output, const TextOptions& text);

/// Returns what is wrong with a token file, by the checksums in the manifest next to it. Empty when nothing is wrong,
/// or when there is no such manifest.
std::string damage_of_tokens(const std::filesystem::path& token_file);

/// Writes `output` (a path that ends in ".bin") from the text files, unless find_tokens() has it. One file may be a
/// pipe, the only one (is_pipe): it is read once, its tokens are made again, and work is not kept when it stops. Throws
/// Code::data for bad input (see text.h) or when there is no text at all. Throws Code::io when writing fails or another
/// process works on the same output.
TokenizeResult tokenize_files(const std::vector<std::string>& files, const Tokenizer& tokenizer,
                              const std::filesystem::path& output, const TokenizeOptions& options);

}  // namespace trainer::data
