#include "data/text.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "config/file_kind.h"
#include "data/json_lines.h"
#include "data/text_start.h"

namespace trainer::data {
namespace {

using config::Document;
constexpr int64_t kLongestJsonLine = int64_t{1} << 30;
// Longer words and lines are split wherever tokens seem to stay the same, and above the second limit anywhere.
// Encoders of lines take more memory: for them the second limit is the first.
constexpr size_t kLongestPart = size_t{8} << 20, kLongestWord = size_t{64} << 20;
constexpr size_t kLookahead = 1024;  // bytes after a window
constexpr size_t npos = std::string_view::npos;

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == npos; }

struct Cut {
  size_t at;
  bool ends_document;
};

/// Splits inside a line that is too long for a piece: before the last space, else at a character boundary.
Cut cut_inside_line(std::string_view text) {
  const size_t space = text.rfind(' ');
  if (space != npos && space > 0) return {space, false};
  size_t at = text.size() - utf8_unfinished(text);
  if (at > 1 && text[at - 1] == '\r') --at;  // keeps "\r\n" together
  return {at, false};
}

/// Returns the end of the last block; empty if none ends.
std::optional<Cut> cut_after_block(std::string_view text) {
  for (size_t end = text.rfind('\n'); end != npos && end > 0;) {  // after the last blank line
    const size_t before = text.rfind('\n', end - 1);
    if (before == npos) break;
    if (is_blank(text.substr(before + 1, end - before - 1))) return Cut{end + 1, true};
    end = before;
  }
  return std::nullopt;
}

/// True if a split before text[at] follows CutRule::between_words. The characters from U+5000 to U+9FFF are all
/// letters.
bool is_between_words(std::string_view text, size_t at) {
  const auto before = static_cast<uint8_t>(text[at - 1]);
  if (text[at] == ' ' && before < 0x80) return before > ' ' && before < 0x7f;
  if (text[at] != ' ' && text[at] != '\n' && text[at] != '\r') return false;
  if (before < 0x80) return std::isalnum(before) != 0;
  const uint8_t lead = at < 3 ? 0 : static_cast<uint8_t>(text[at - 3]);
  return lead >= 0xE5 && lead <= 0xE9 && utf8_character(text.substr(at - 3)) == 3;
}

/// True if the rule allows a split inside a document before text[at].
bool is_allowed(std::string_view text, size_t at, Document document, CutRule rule) {
  if (rule == CutRule::between_words) return is_between_words(text, at);
  if (text[at - 1] != '\n') return false;
  // The next line of a block must certainly not be blank.
  if (document == Document::block) return text[at] != '\n' && !is_blank(text.substr(at, 1));
  return rule == CutRule::after_newline || text[at] != '\n';
}

/// Returns the last allowed place at or before text[most] that passes the check. After many that fail, tries fewer and
/// fewer of the earlier ones.
template <typename Allowed>
std::optional<Cut> last_place(std::string_view text, size_t most, Allowed&& allowed, const SplitCheck& check,
                              bool inside_word = false) {
  constexpr int kFirstTries = 32;
  size_t step = 128;
  for (size_t at = most, tries = 0; at > 0; --at) {
    if (!allowed(at)) continue;
    if (!check || check(text, at, inside_word)) return Cut{at, false};
    if (++tries < kFirstTries) continue;
    if (at <= step) break;
    at -= step;
    step *= 2;
  }
  return std::nullopt;
}

/// Splits inside a document, at or before text[most]; returns an empty result if a larger window may contain a place.
std::optional<Cut> cut_inside_document(std::string_view text, size_t most, Document document, CutRule rule,
                                       const SplitCheck& check) {
  const bool by_words = rule == CutRule::between_words;
  const auto allowed = [&](size_t at) { return is_allowed(text, at, document, rule); };
  if (auto cut = last_place(text, most, allowed, by_words ? check : nullptr)) return cut;
  if (by_words && most < kLongestPart) return std::nullopt;
  const std::string_view window = text.substr(0, most);
  if (check) {  // a place inside a line or a word
    const auto character = [&](size_t at) {
      return (text[at] & 0xC0) != 0x80 && text[at] != text[at - 1] && text[at - 1] != '\r';
    };
    if (auto cut = last_place(
            text, most, [&](size_t at) { return text[at] == ' '; }, check, true))
      return cut;
    if (auto cut = last_place(text, most, character, check, true)) return cut;
  } else if (rule == CutRule::after_newline || (!by_words && window.find('\n') == npos)) {
    return cut_inside_line(window);
  }
  return most < (by_words ? kLongestWord : kLongestPart) ? std::nullopt : std::optional(cut_inside_line(window));
}

/// Returns the end of a piece whose window text[0, most) does not reach the end of the file, so that there is at least
/// one more byte; empty if the window is too small.
std::optional<Cut> find_cut(std::string_view text, size_t most, bool json_lines, Document document, CutRule rule,
                            const SplitCheck& check) {
  const std::string_view window = text.substr(0, most);
  if (json_lines || document == Document::line) {
    if (const size_t newline = window.rfind('\n'); newline != npos) return Cut{newline + 1, true};
    if (json_lines) return std::nullopt;
  }
  if (document == Document::block)
    if (const auto cut = cut_after_block(window)) return cut;
  return cut_inside_document(text, most, document, rule, check);
}

/// Calls fn(line, offset of the line in `text`) for each line, without "\n".
template <typename F>
void for_each_line(std::string_view text, F&& fn) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    fn(text.substr(begin, end - begin), begin);
    begin = end + 1;
  }
}

void split_lines(std::string_view text, bool inside, bool ends_document, const DocumentSink& sink) {
  for_each_line(text, [&](std::string_view line, size_t offset) {
    const bool starts = offset > 0 || !inside;
    const bool ends = offset + line.size() < text.size() || ends_document;
    if (starts && is_blank(line) && ends) return;
    if (ends && line.ends_with('\r')) line.remove_suffix(1);
    sink(line, starts, ends);
  });
}

void split_blocks(std::string_view text, bool inside, bool ends_document, const DocumentSink& sink) {
  size_t begin = inside ? 0 : npos, end = 0;  // the current block: [begin, end), without its last line end
  bool starts = !inside;
  const auto emit = [&] {
    if (begin == npos) return;
    std::string_view block = text.substr(begin, end - begin);
    if (block.ends_with('\r')) block.remove_suffix(1);
    sink(block, starts, true);
    begin = npos;
    starts = true;
  };
  for_each_line(text, [&](std::string_view line, size_t offset) {
    const bool rest_of_line = inside && offset == 0;
    if (is_blank(line) && !rest_of_line) return emit();
    if (begin == npos) begin = offset;
    end = offset + line.size();
  });
  if (ends_document) return emit();
  if (begin != npos) sink(text.substr(begin), starts, false);
}

/// Returns a position such as "offset 18 (line 2)". Reads the file again to count lines.
std::string place(const std::string& file, int64_t offset, const TextOptions& options) {
  if (is_pipe(file)) return fmt::format("offset {}", offset);
  return fmt::format("offset {} (line {})", offset, line_of(file, offset, columns_of(options)));
}

[[noreturn]] void refuse_line(const std::string& file, int64_t offset, const TextOptions& options,
                              const std::string& reason) {
  throw Error(Code::data, fmt::format("{}: {}: {}", file, place(file, offset, options), reason));
}

/// True if the object is the first of a file, apart from empty lines, so that pieces need not know each other.
bool is_first(int64_t offset) { return offset <= static_cast<int64_t>(kUtf8Mark.size()); }

void split_json_lines(const std::string& file, const TextPiece& piece, const TextOptions& options, TextFlaws& count,
                      const DocumentSink& sink) {
  for_each_object(file, piece, options, count, [&](const nlohmann::json& object, int64_t offset) {
    const auto text = object.find(options.text_key);
    const bool missing = text == object.end(), first = is_first(offset);
    if (missing && (first || options.strict))
      refuse_line(file, offset, options,
                  fmt::format("the object has no member \"{}\"; set data.text_key to the one with the text{}",
                              options.text_key, first ? "" : " (data.strict = false skips such lines)"));
    if (missing || (text->is_null() && !options.strict)) {
      if (count.without_text++ == 0) count.first_without = offset;
      return;
    }
    if (!text->is_string())
      refuse_line(file, offset, options,
                  fmt::format("\"{}\" is {}{}, expected a string{}", options.text_key,
                              text->is_null()         ? ""
                              : text->is_structured() ? "an "
                                                      : "a ",
                              text->type_name(), text->is_null() ? " (data.strict = false skips such lines)" : ""));
    const auto& value = text->get_ref<const std::string&>();
    if (!value.empty()) sink(value, true, true);
  });
}

std::string names_of_members(const nlohmann::json& object) {
  std::string names;
  for (const auto& [name, value] : object.items()) names += (names.empty() ? "" : ", ") + name;
  return names.empty() ? "no members" : names;
}

/// Returns the messages' texts, as a tokenizer is trained on them.
std::string contents_of(const Conversation& conversation) {
  std::string text;
  for (const ChatMessage& message : conversation) text += (text.empty() ? "" : "\n") + message.content;
  return text;
}

/// Returns whether the piece is empty; throws for invalid UTF-8 if that is an error.
TextFlaws flaws_of(const std::string& file, const TextPiece& piece, const TextOptions& options) {
  TextFlaws count;
  count.empty_file = piece.text.empty();
  const size_t bad = options.strict ? utf8_first_invalid(piece.text) : piece.text.size();
  if (bad < piece.text.size())
    refuse_line(file, piece.at.offset + static_cast<int64_t>(bad), options,
                fmt::format("byte 0x{:02x} is not valid UTF-8 (data.strict = false replaces it)",
                            static_cast<uint8_t>(piece.text[bad])));
  return count;
}

}  // namespace

void require_conversations(const std::string& file, config::DataFormat stated) {
  const std::optional<config::FileKind> kind = config::file_kind(file, stated);
  if (kind != config::FileKind::json_lines)
    throw Error(Code::config, fmt::format("{}: document = \"chat\" needs JSON lines or Parquet{}", file,
                                          kind == config::FileKind::tokens
                                              ? "; for tokens of conversations, use packing = \"best-fit\" instead"
                                              : ""));
}

bool is_json_lines(const std::string& file, const TextOptions& options) {
  return config::file_kind(file, options.format) == config::FileKind::json_lines;
}

Columns columns_of(const TextOptions& options) {
  if (options.document == config::Document::chat) return {"messages", "conversations", "prompt", "completion"};
  return {options.text_key};
}

void for_each_object(const std::string& file, const TextPiece& piece, const TextOptions& options, TextFlaws& flaws,
                     const std::function<void(const nlohmann::json& object, int64_t offset)>& use) {
  for_each_line(piece.text, [&](std::string_view line, size_t start) {
    if (is_blank(line)) return;
    const int64_t offset = piece.at.offset + static_cast<int64_t>(start);
    std::string valid(line);
    const Utf8Repair repair = utf8_repair(valid);
    if (repair.replaced > 0 && flaws.replaced == 0) flaws.first_offset = offset + static_cast<int64_t>(repair.first);
    flaws.replaced += repair.replaced;
    auto object = nlohmann::json::parse(valid, nullptr, /*allow_exceptions=*/false);
    if (object.is_discarded()) {
      std::string mended = valid;
      const JsonRepair mend = mend_json(mended);
      object = nlohmann::json::parse(without_overflow(mended), nullptr, /*allow_exceptions=*/false);
      if (object.is_discarded())
        refuse_line(file, offset, options,
                    "expected a JSON object on each line; " + json_fault(valid) + "; correct or delete the line");
      if (mend.surrogates > 0 && options.strict)
        refuse_line(file, offset, options, "a string contains an unpaired surrogate (data.strict = false replaces it)");
      if (mend.surrogates > 0 && flaws.replaced == 0) flaws.first_offset = offset + static_cast<int64_t>(mend.first);
      flaws.replaced += mend.surrogates;
    }
    if (!object.is_object())
      refuse_line(file, offset, options, "expected a JSON object on each line; correct or delete the line");
    use(object, offset);
  });
}

PieceReader::PieceReader(std::vector<std::string> files, TextOptions options, int64_t piece_bytes, TextPosition start,
                         CutRule cuts, SplitCheck check)
    : files_(std::move(files)),
      options_(std::move(options)),
      piece_bytes_(piece_bytes),
      cuts_(cuts),
      check_(std::move(check)),
      next_(start) {}

void PieceReader::open(const std::string& name) {
  source_ = open_source(name, columns_of(options_), &cancelled_);
  std::string start(kTextStart, '\0');
  start.resize(source_->read_at(0, start.data(), start.size()));
  const size_t begin = byte_order_mark(start);
  if (start.size() == begin && options_.strict) refuse_empty(name);
  require_text(name, start, options_.format != config::DataFormat::automatic && !is_json_lines(name, options_));
  if (next_.offset == 0) next_.offset = static_cast<int64_t>(begin);
}

std::optional<TextPiece> PieceReader::next() {
  if (next_.file == static_cast<int64_t>(files_.size())) return std::nullopt;
  const std::string& name = files_[static_cast<size_t>(next_.file)];
  if (!source_) open(name);
  TextPiece piece{.at = next_, .text = {}};
  const bool json_lines = is_json_lines(name, options_);
  const auto ends_at = [&](int64_t offset) { piece.file_bytes = source_->file_bytes(offset); };
  for (int64_t window = piece_bytes_;; window *= 2) {
    const auto most = static_cast<size_t>(window);
    piece.text.resize(most + kLookahead);
    const size_t got = source_->read_at(next_.offset, piece.text.data(), piece.text.size());
    piece.text.resize(got);
    if (got <= most) {
      ends_at(next_.offset + static_cast<int64_t>(got));
      piece.pipe_hash = source_->hash();
      next_ = {.file = next_.file + 1};
      source_.reset();
      return piece;
    }
    if (const auto cut = find_cut(piece.text, most, json_lines, options_.document, cuts_, check_)) {
      piece.text.resize(cut->at);
      piece.ends_document = cut->ends_document;
      next_.offset += static_cast<int64_t>(cut->at);
      ends_at(next_.offset);
      next_.inside_document = !cut->ends_document;
      return piece;
    }
    if (window > kLongestJsonLine) {
      throw Error(Code::data, fmt::format("{}: offset {}: a line of more than {} bytes; is this JSON lines?", name,
                                          next_.offset, kLongestJsonLine));
    }
  }
}

TextFlaws split_conversations(const std::string& file, TextPiece&& piece, const TextOptions& options,
                              const std::function<void(const Conversation& conversation)>& use) {
  require_conversations(file, options.format);
  TextFlaws count = flaws_of(file, piece, options);
  if (count.empty_file) return count;
  Conversation conversation;
  for_each_object(file, piece, options, count, [&](const nlohmann::json& object, int64_t offset) {
    std::optional<ChatFlaw> flaw = read_conversation(object, conversation);
    if (flaw == ChatFlaw::no_members && (is_first(offset) || options.strict))
      refuse_line(
          file, offset, options,
          fmt::format("no messages, conversations, or prompt and completion; it has {}", names_of_members(object)));
    if (!flaw) flaw = keep_trained(options.chat, conversation);
    if (!flaw) return use(conversation);
    if (options.strict)
      refuse_line(
          file, offset, options,
          fmt::format("a conversation that cannot be trained on: {} (data.strict = false skips it)", name_of(*flaw)));
    ++count.skipped[static_cast<size_t>(*flaw)];
    if (count.first_skipped < 0) count.first_skipped = offset;
  });
  return count;
}

TextFlaws split_documents(const std::string& file, TextPiece&& piece, const TextOptions& options,
                          const DocumentSink& sink) {
  if (options.document == Document::chat)
    return split_conversations(file, std::move(piece), options, [&](const Conversation& conversation) {
      if (const std::string text = contents_of(conversation); !text.empty()) sink(text, true, true);
    });
  TextFlaws count = flaws_of(file, piece, options);
  if (count.empty_file) return count;
  if (is_json_lines(file, options)) {
    split_json_lines(file, piece, options, count, sink);
    return count;
  }
  const Utf8Repair repair = utf8_repair(piece.text);
  if (repair.replaced > 0) {
    count.replaced = repair.replaced;
    count.first_offset = piece.at.offset + static_cast<int64_t>(repair.first);
  }
  const bool inside = piece.at.inside_document;
  switch (options.document) {
    case Document::file:
      sink(piece.text, !inside, piece.ends_document);
      break;
    case Document::line:
      split_lines(piece.text, inside, piece.ends_document, sink);
      break;
    case Document::block:
      split_blocks(piece.text, inside, piece.ends_document, sink);
      break;
    case Document::chat:
      break;  // above
  }
  return count;
}

}  // namespace trainer::data
