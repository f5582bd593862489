// SentencePiece models, encoded with the SentencePiece library, with two additions: byte tokens for all text that the
// library would change, and a word cache.
#include <sentencepiece_processor.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/utf8.h"
#include "data/model_traits.h"
#include "data/tokenizer_model.h"
#include "data/word_cache.h"

namespace trainer::data {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581 represents a space inside pieces

/// Returns the text of a piece, with U+2581 replaced by spaces.
std::string with_spaces(std::string text) {
  for (size_t at = text.find(kSpaceMark); at != std::string::npos; at = text.find(kSpaceMark, at + 1)) {
    text.replace(at, kSpaceMark.size(), " ");
  }
  return text;
}

class SentencePieceModel final : public TokenizerModel {
 public:
  SentencePieceModel(const std::string& serialized, const std::string& origin) : origin_(origin) {
    const auto traits = read_traits(serialized);
    const auto refuse = [&](const std::string& reason) {
      throw Error(Code::data, fmt::format("{}: not a usable SentencePiece model ({} bytes): {}", origin,
                                          serialized.size(), reason));
    };
    if (!traits || serialized.empty()) refuse("expected a .model file written by SentencePiece or by this program");
    if (traits->nul_in_piece) refuse("a piece contains a NUL character");
    // A library that trims spaces would trim our prefix. In that case the library adds its own prefix to each line.
    own_prefix_ = traits->dummy_prefix && !traits->trims_spaces;
    const std::string loaded = own_prefix_ ? serialized + std::string(kNoDummyPrefix) : serialized;
    const auto status = processor_.LoadFromSerializedProto(loaded);
    if (!status.ok()) refuse(status.ToString());
    facts_.eos = processor_.eos_id();
    facts_.bos = processor_.bos_id();
    if (facts_.eos < 0) refuse("it has no end-of-text token (</s>); one is required to end documents");
    const bool spaces_in_front_only = read_pieces();
    facts_.splits_words =
        spaces_in_front_only && traits->bpe && !traits->normalises && !traits->trims_spaces && traits->escapes_spaces;
    facts_.dummy_prefix = traits->dummy_prefix;
    facts_.file_name = "tokenizer.model";
    read_line_ends(serialized);
    if (traits->spaces_behind) {
      not_encoded_ = "treat_whitespace_as_suffix is not supported";
    } else if (line_ends_.empty() && traits->trims_spaces && !traits->dummy_prefix) {
      not_encoded_ = "remove_extra_whitespaces without add_dummy_prefix would join the words of adjacent lines";
    } else if (!line_ends_.empty() && line_ends_.front() < 0) {
      not_encoded_ = "it has a symbol for several line ends but none for one";
    }
    if (line_ends_.size() > 1) {
      facts_.cuts = CutRule::between_lines;
      facts_.encoding = 2;
    }
  }

  std::unique_ptr<TextEncoder> encoder() const override;
  std::string name_of(int32_t id) const override { return processor_.IdToPiece(id); }

  /// Encodes valid UTF-8 with the library. Throws Code::data for text that the model does not cover, for example a
  /// control symbol that is an ordinary character.
  void encode(std::string_view text, std::vector<int>& ids) const {
    const auto status = processor_.Encode(absl::string_view(text.data(), text.size()), &ids);
    if (!status.ok())
      throw Error(Code::data, fmt::format("{}: this tokenizer cannot encode the text: {}; train a different one",
                                          origin_, status.ToString()));
  }
  /// Returns the ids of the symbols for one line end, two, and so on; −1: none. Empty if there are none.
  const std::vector<int32_t>& line_ends() const { return line_ends_; }
  bool has_bytes() const { return has_bytes_; }
  bool own_prefix() const { return own_prefix_; }
  int32_t byte_id(char byte) const { return byte_ids_[static_cast<uint8_t>(byte)]; }

 private:
  /// Returns true if pieces contain spaces only at the front.
  bool read_pieces() {
    bool spaces_in_front_only = true;
    const int count = processor_.GetPieceSize();
    for (int id = 0; id < count; ++id) {
      const std::string& piece = processor_.IdToPiece(id);
      spaces_in_front_only = spaces_in_front_only && piece.find(kSpaceMark, 1) == std::string::npos &&
                             piece.find(' ') == std::string::npos;
      if (processor_.IsByte(id)) {
        const auto byte = static_cast<uint8_t>(std::stoi(piece.substr(3, 2), nullptr, 16));  // "<0x41>"
        byte_ids_[byte] = id;
        has_bytes_ = true;
        facts_.pieces.emplace_back(1, static_cast<char>(byte));
      } else if (processor_.IsControl(id)) {
        facts_.pieces.emplace_back();
      } else {  // the library's " ⁇ " for unknown text
        facts_.pieces.push_back(processor_.IsUnknown(id) ? " \xE2\x81\x87 " : with_spaces(piece));
      }
    }
    return spaces_in_front_only;
  }

  void read_line_ends(std::string_view serialized) {
    const std::vector<ModelPiece> pieces = data::read_pieces(serialized);
    for (size_t id = 0; id < pieces.size(); ++id) {
      const auto& [text, score, kind] = pieces[id];
      const bool symbol = text.size() == 1 ? kind != PieceKind::unknown : kind == PieceKind::user_defined;
      if (!symbol || text.empty() || text.find_first_not_of('\n') != text.npos) continue;
      if (line_ends_.size() < text.size()) line_ends_.resize(text.size(), -1);
      line_ends_[text.size() - 1] = static_cast<int32_t>(id);
    }
  }

  const std::string origin_;
  sentencepiece::SentencePieceProcessor processor_;
  std::array<int32_t, 256> byte_ids_{};
  std::vector<int32_t> line_ends_;
  std::string not_encoded_;  // why texts cannot be encoded as the library would; empty: they can
  bool has_bytes_ = false;
  bool own_prefix_ = false;  // the prefix is added here once per document, not by the library
};

class SentencePieceEncoder final : public TextEncoder {
 public:
  explicit SentencePieceEncoder(const SentencePieceModel& model)
      : model_(model), splits_words_(model.facts().splits_words) {}

  void append(std::string_view text, std::vector<int32_t>& ids, bool starts_document) override {
    std::string prefixed;
    if (starts_document && model_.own_prefix() && !text.empty()) {
      prefixed.append(1, ' ').append(text);
      text = prefixed;
    }
    while (!text.empty()) {
      const size_t newline = text.find('\n');
      const bool own_symbol = newline != std::string_view::npos && !model_.line_ends().empty();
      const size_t length = newline == std::string_view::npos ? text.size() : newline + (own_symbol ? 0 : 1);
      append_words(text.substr(0, length), ids);
      text.remove_prefix(length);
      if (own_symbol) text.remove_prefix(append_line_ends(text, ids));
    }
  }

 private:
  /// Appends the longest symbol for line ends that the text begins with. Returns the number of its line ends.
  size_t append_line_ends(std::string_view text, std::vector<int32_t>& ids) {
    const std::vector<int32_t>& symbols = model_.line_ends();
    text = text.substr(0, symbols.size());
    size_t count = std::min(text.find_first_not_of('\n'), text.size());
    while (symbols[count - 1] < 0) --count;
    ids.push_back(symbols[count - 1]);
    return count;
  }
  /// Splits before each space if the model allows it, and around text that must become byte tokens.
  void append_words(std::string_view line, std::vector<int32_t>& ids) {
    size_t begin = 0, at = 0;
    const auto flush = [&](size_t end) {
      if (end > begin) append_word(line.substr(begin, end - begin), ids);
      begin = end;
    };
    while (at < line.size()) {
      const auto byte = static_cast<uint8_t>(line[at]);
      if (byte < 0x80) {
        if (byte == ' ' && splits_words_) flush(at);
        ++at;
        continue;
      }
      const size_t length = utf8_character(line.substr(at));
      const bool to_bytes = model_.has_bytes() && (length == 0 || line.substr(at, length) == kSpaceMark);
      if (!to_bytes) {
        at += std::max<size_t>(length, 1);
        continue;
      }
      flush(at);
      for (const size_t end = at + std::max<size_t>(length, 1); at < end; ++at) ids.push_back(model_.byte_id(line[at]));
      begin = at;
    }
    flush(line.size());
  }

  void append_word(std::string_view word, std::vector<int32_t>& ids) {
    if (splits_words_ && word.size() <= WordCache::kLongestWord)
      return words_.append(word, ids,
                           [&](std::string_view each, std::vector<int32_t>& tokens) { model_.encode(each, tokens); });
    model_.encode(word, scratch_);
    ids.insert(ids.end(), scratch_.begin(), scratch_.end());
  }

  const SentencePieceModel& model_;
  const bool splits_words_;
  WordCache words_;
  std::vector<int> scratch_;
};

std::unique_ptr<TextEncoder> SentencePieceModel::encoder() const {
  if (!not_encoded_.empty())
    throw Error(Code::data, fmt::format("{}: this program cannot encode text with this SentencePiece model: {}; use a "
                                        "different tokenizer",
                                        origin_, not_encoded_));
  return std::make_unique<SentencePieceEncoder>(*this);
}

}  // namespace

std::unique_ptr<TokenizerModel> make_sentencepiece(const std::string& serialized, const std::string& origin) {
  return std::make_unique<SentencePieceModel>(serialized, origin);
}

}  // namespace trainer::data
