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

void split_json_lines(const std::string& file, const TextPiece& piece, const TextOptions& options, TextFlaws& count,
                      const DocumentSink& sink) {
  for_each_line(piece.text, [&](std::string_view line, size_t start) {
    if (is_blank(line)) return;
    const int64_t offset = piece.at.offset + static_cast<int64_t>(start);
    std::string valid(line);
    const Utf8Repair repair = utf8_repair(valid);
    if (repair.replaced > 0 && count.replaced == 0) count.first_offset = offset + static_cast<int64_t>(repair.first);
    count.replaced += repair.replaced;
    const auto refuse = [&](const std::string& reason) {
      throw Error(Code::data, fmt::format("{}: {}: {}", file, place(file, offset, options), reason));
    };
    auto object = nlohmann::json::parse(valid, nullptr, /*allow_exceptions=*/false);
    if (object.is_discarded()) {
      std::string mended = valid;
      const JsonRepair mend = mend_json(mended);
      object = nlohmann::json::parse(without_overflow(mended), nullptr, /*allow_exceptions=*/false);
      if (object.is_discarded())
        refuse("expected a JSON object on each line; " + json_fault(valid) + "; correct or delete the line");
      if (mend.surrogates > 0 && options.strict)
        refuse("a string contains an unpaired surrogate (data.strict = false replaces it)");
      if (mend.surrogates > 0 && count.replaced == 0) count.first_offset = offset + static_cast<int64_t>(mend.first);
      count.replaced += mend.surrogates;
    }
    if (!object.is_object()) refuse("expected a JSON object on each line; correct or delete the line");
    const auto text = object.find(options.text_key);
    // A first line after empty ones does not count, so that pieces need not know each other.
    const bool missing = text == object.end(), first = offset <= static_cast<int64_t>(kUtf8Mark.size());
    if (missing && (first || options.strict))
      refuse(fmt::format("the object has no member \"{}\"; set data.text_key to the one with the text{}",
                         options.text_key, first ? "" : " (data.strict = false skips such lines)"));
    if (missing || (text->is_null() && !options.strict)) {
      if (count.without_text++ == 0) count.first_without = offset;
      return;
    }
    if (!text->is_string())
      refuse(fmt::format("\"{}\" is {}{}, expected a string{}", options.text_key,
                         text->is_null()         ? ""
                         : text->is_structured() ? "an "
                                                 : "a ",
                         text->type_name(), text->is_null() ? " (data.strict = false skips such lines)" : ""));
    const auto& value = text->get_ref<const std::string&>();
    if (!value.empty()) sink(value, true, true);
  });
}

}  // namespace

bool is_json_lines(const std::string& file, const TextOptions& options) {
  return config::file_kind(file, options.format) == config::FileKind::json_lines;
}

Columns columns_of(const TextOptions& options) { return {options.text_key}; }

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

TextFlaws split_documents(const std::string& file, TextPiece&& piece, const TextOptions& options,
                          const DocumentSink& sink) {
  TextFlaws count;
  if (piece.text.empty()) {
    count.empty_file = true;
    return count;
  }
  if (options.strict) {
    const size_t bad = utf8_first_invalid(piece.text);
    if (bad < piece.text.size()) {
      throw Error(Code::data, fmt::format("{}: {}: byte 0x{:02x} is not valid UTF-8 (data.strict = false replaces it)",
                                          file, place(file, piece.at.offset + static_cast<int64_t>(bad), options),
                                          static_cast<uint8_t>(piece.text[bad])));
    }
  }
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
  }
  return count;
}

}  // namespace trainer::data
