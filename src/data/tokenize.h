#pragma once
// Tokenizing turns text files into a token file: in parallel, in bounded memory, resumable. The output is a pure
// function of the texts, the tokenizer and the options: it does not depend on thread count, interruptions or piece
// size.
//
// NAME.bin, NAME.docs, NAME.spans (of conversations) and NAME.json (the manifest, written last) are published only when
// complete. Until then NAME.work/ contains the unfinished output, from which the next call resumes.
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/interruptible.h"
#include "data/text.h"
#include "data/tokenizer.h"

namespace trainer::data {

struct TokenizeProgress {
  int64_t bytes = 0, total_bytes = 0;  // bytes of the files on disk; no total for a pipe
  int64_t tokens = 0;
};

struct TokenizeOptions {
  TextOptions text;
  bool from_scratch = false;  // existing output is ignored
  int threads = 1;
  int64_t piece_bytes = kPieceBytes;
  /// Amount of text between two sync points; it bounds the work that an interruption can lose.
  int64_t sync_bytes = int64_t{256} << 20;
  std::function<void()> begin;                            // called before tokenizing, unless the output is reused
  std::function<bool()> stop;                             // polled; true: save the work done so far and return
  std::function<void(const TokenizeProgress&)> progress;  // called after each piece
  std::function<void(const std::string& doing, double seconds)> busy;  // as in Watch: before the first piece
};

struct TokenizeResult {
  std::filesystem::path tokens_file;
  bool finished = true;  // false: stopped; call again to resume
  bool reused = false;   // the finished output already existed
  int64_t tokens = 0, documents = 0;
  int64_t text_bytes = 0;      // bytes of text in the documents, after repair
  int64_t replaced = 0;        // invalid UTF-8 bytes
  std::string first_replaced;  // "file: offset n" of the first one
  int64_t without_text = 0;    // lines that were skipped (TextFlaws)
  std::string first_without = {};
  int64_t empty_files = 0;
  std::string first_empty = {};
  std::array<int64_t, kChatFlaws> skipped = {};  // conversations, by their flaw
  std::string first_skipped = {};
  int64_t counted = 0;  // tokens of conversations that are trained
};

/// Returns the reasons for which conversations were skipped: "3 (2 tool calls, 1 null contents)". Empty: none were.
std::string skipped_text(const TokenizeResult& result);
/// Logs a warning for each kind of flaw that was repaired or skipped.
void warn_of_flaws(const TokenizeResult& result, const TextOptions& text);

/// Finds the finished output of these texts, tokenizer and options. Its manifest must name the same texts by size and
/// content. Unchanged modification times are trusted, and missing text files are assumed unchanged, with a warning. Its
/// files must have the manifest's checksums (or fingerprints, for files larger than 4 GiB). Otherwise returns an empty
/// result, with a warning if the files are corrupt. Writes nothing. Throws Interrupted.
std::optional<TokenizeResult> find_tokens(const std::vector<std::string>& files, const Tokenizer& tokenizer,
                                          const std::filesystem::path& output, const TextOptions& text,
                                          const Watch& watch = {});

/// Checks a token file against the checksums in the manifest next to it and describes any corruption. Returns an empty
/// text if the file is intact or has no manifest with checksums.
std::string damage_of_tokens(const std::filesystem::path& token_file);

/// Returns the format of the conversations in a token file, as its manifest records it; empty: it does not.
std::string chat_format_of(const std::filesystem::path& token_file);

/// Returns the text file of a document (counted from 0) of a token file, as its manifest records it: the only text, or
/// the text with that number if each file is one document. Empty if the manifest does not record it.
std::string text_of_document(const std::filesystem::path& token_file, int64_t document, const TextOptions& text);

/// Writes `output` (a path that ends in ".bin") from the text files, unless find_tokens() finds it. If there is a
/// single file, it may be a pipe (is_pipe): it is read once, always tokenized again, and the work is not kept when it
/// stops. Throws Code::data for bad input (see text.h) or when there is no text at all. Throws Code::io when writing
/// fails or a different process works on the same output. After an error, work up to the last sync point is kept.
TokenizeResult tokenize_files(const std::vector<std::string>& files, const Tokenizer& tokenizer,
                              const std::filesystem::path& output, const TokenizeOptions& options);

}  // namespace trainer::data
