#pragma once
// Text files as pieces of bounded size, and pieces as documents. A piece ends where a split changes neither documents
// nor tokens: at the end of a document, else where the tokenizer allows it (CutRule); in a line longer than a piece,
// before a space. The next piece's beginning depends only on the file's content, so reading can be resumed at any
// piece.
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/data.h"
#include "data/byte_source.h"
#include "data/conversation.h"

namespace trainer::data {

struct TextOptions {
  std::string text_key = "text";                       // .jsonl: the member that holds the text
  config::Document document = config::Document::file;  // plain text: the extent of a document
  bool strict = false;                                 // TextFlaws are errors instead of being repaired or skipped
  config::DataFormat format = config::DataFormat::automatic;  // format of the files if their names do not determine it
  const ChatFormat* chat = nullptr;  // the conversations' format; null: their text is read as a document
};

/// True for JSON lines, false for plain text: determined by the file's name unless the options set it.
bool is_json_lines(const std::string& file, const TextOptions& options);
/// Returns the members of JSON objects that split_documents() uses with these options.
Columns columns_of(const TextOptions& options);

/// The positions at which a document may be split.
enum class CutRule {
  after_newline,  // the tokenizer encodes lines one by one
  between_lines,  // likewise; after the last of several adjacent line ends
  /// Before a space that follows anything but white space, or a line end that follows a letter or digit: words of most
  /// patterns used with byte-level BPE end there, whatever follows. A SplitCheck verifies it.
  between_words,
};

/// Returns true if the tokens of `text` stay the same when it is split before text[at]. `inside_word` as in
/// Encoder::may_split().
using SplitCheck = std::function<bool(std::string_view text, size_t at, bool inside_word)>;

struct TextPosition {
  int64_t file = 0, offset = 0;
  bool inside_document = false;  // a document began before this position
};

struct TextPiece {
  TextPosition at;
  std::string text;           // raw bytes
  bool ends_document = true;  // false: the last document continues in the next piece
  int64_t file_bytes = 0;     // bytes of the file on disk that were read for the text up to the piece's end
  /// On the last piece of a pipe: the value that hash_file() would return for a file with the same text.
  std::string pipe_hash;
};

constexpr int64_t kPieceBytes = int64_t{1} << 20;

/// Reads `files` in order, in pieces of about `piece_bytes`, beginning at `start`. Inside a document they end where the
/// rule and `check`, if any, allow it. A byte-order mark at the start of a file is ignored. An empty file is one empty
/// piece. Throws Code::data when a file is missing, not text (require_text), empty and options.strict, or is truncated
/// while being read.
class PieceReader {
 public:
  PieceReader(std::vector<std::string> files, TextOptions options, int64_t piece_bytes = kPieceBytes,
              TextPosition start = {}, CutRule cuts = CutRule::after_newline, SplitCheck check = nullptr);
  /// Returns the next piece; empty after the last one.
  std::optional<TextPiece> next();
  /// Returns the position at which the next piece begins.
  TextPosition position() const { return next_; }
  /// Makes a call of next() in a different thread return early, even if it waits for a pipe; no piece is valid
  /// afterwards.
  void cancel() { cancelled_ = true; }
  /// For a single file: the next piece begins at `offset`, which must not be before the last one.
  void skip_to(int64_t offset) { next_ = {.offset = offset}; }

 private:
  void open(const std::string& name);

  std::vector<std::string> files_;
  TextOptions options_;
  int64_t piece_bytes_;
  CutRule cuts_;
  SplitCheck check_;
  TextPosition next_;
  std::unique_ptr<ByteSource> source_;
  std::atomic<bool> cancelled_ = false;
};

/// Repairs and omissions in a piece.
struct TextFlaws {
  int64_t replaced = 0;       // invalid UTF-8 bytes replaced by U+FFFD
  int64_t first_offset = -1;  // offset of the first one in the file
  int64_t without_text = 0;   // lines of .jsonl that were skipped: their text is null or missing
  int64_t first_without = -1;
  bool empty_file = false;                    // the file has no text at all
  std::array<int64_t, kChatFlaws> skipped{};  // conversations, by their flaw
  int64_t first_skipped = -1;
};

/// Calls use(object, offset) for the JSON object of each line of a piece that is not blank; `offset` is the line's in
/// the file. Repairs invalid UTF-8 and what mend_json() repairs, counted in `flaws`. Throws Code::data for a line that
/// is not a JSON object, and when strict for unpaired surrogates. The message names `file`, the offset and the line.
void for_each_object(const std::string& file, const TextPiece& piece, const TextOptions& options, TextFlaws& flaws,
                     const std::function<void(const nlohmann::json& object, int64_t offset)>& use);

/// Calls use(conversation) for each conversation of a piece of JSON lines, without what follows the last turn of the
/// assistant. Conversations that cannot be trained on are skipped and counted, but the first line of a file must have
/// the members. Throws like for_each_object(), and when strict for any TextFlaws.
TextFlaws split_conversations(const std::string& file, TextPiece&& piece, const TextOptions& options,
                              const std::function<void(const Conversation& conversation)>& use);
/// Throws Code::config, naming the file, if it is not JSON lines.
void require_conversations(const std::string& file, config::DataFormat stated);

/// A part of a document; `starts` and `ends` are true for the first and the last part. The view is valid only during
/// the call.
using DocumentSink = std::function<void(std::string_view text, bool starts, bool ends)>;

/// Calls `sink` for each document part of the piece, in order. Empty documents are skipped.
///   file:  the whole file is one document, unchanged;
///   line:  each line that is not blank, without its line end;
///   block: lines between blank lines, without the last line end;
///   chat:  the contents of each conversation's messages (see split_conversations());
///   .jsonl: the text of each line's object. Lines whose text is null or missing are skipped, but the first line of a
///   file must have the member: otherwise options.text_key is probably wrong.
/// Throws Code::data for a line that is not a JSON object, for a text that is not a string, and when strict for any
/// TextFlaws. The message names `file`, the byte offset and the line.
TextFlaws split_documents(const std::string& file, TextPiece&& piece, const TextOptions& options,
                          const DocumentSink& sink);

}  // namespace trainer::data
