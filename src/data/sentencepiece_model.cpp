// SentencePiece models, encoded with the SentencePiece library, with three additions: byte tokens for all text that a
// model without normalization would change, a word cache, and tokens that other files add.
#include <sentencepiece_processor.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include "base/error.h"
#include "base/utf8.h"
#include "data/added_tokens.h"
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

/// True if the character map is one of the library's own, whose rules never join an ASCII letter, digit or space to
/// what follows if that is one of them, too.
bool has_known_rules(const ModelTraits& traits) {
  constexpr std::array<std::string_view, 5> kKnown = {"identity", "nfkc", "nfkc_cf", "nmt_nfkc", "nmt_nfkc_cf"};
  return !traits.normalises || std::ranges::find(kKnown, traits.rules) != kKnown.end();
}

class SentencePieceModel final : public TokenizerModel {
 public:
  SentencePieceModel(const std::string& serialized, const std::string& origin)
      : origin_(origin), added_(read_added_tokens(serialized, origin)), finder_(all_of(added_)) {
    const auto traits = read_traits(serialized);
    const auto refuse = [&](const std::string& reason) {
      throw Error(Code::data, fmt::format("{}: not a usable SentencePiece model ({} bytes): {}", origin,
                                          serialized.size(), reason));
    };
    if (!traits || serialized.empty()) refuse("expected a .model file written by SentencePiece or by this program");
    if (traits->nul_in_piece) refuse("a piece contains a NUL character");
    const auto load = [&](sentencepiece::SentencePieceProcessor& processor, std::string_view more) {
      if (const auto status = processor.LoadFromSerializedProto(serialized + std::string(more)); !status.ok())
        refuse(status.ToString());
    };
    changes_text_ = traits->normalises || traits->trims_spaces;
    own_prefix_ = traits->dummy_prefix && !changes_text_;
    prefixes_again_ = added_.prefixes_again();
    prefixes_words_only_ = added_.prefixes_words_only();
    load(processor_, own_prefix_ ? kNoDummyPrefix : "");
    // A library that trims spaces would trim the one that a later part begins with, and has to add it again.
    if (changes_text_ && traits->dummy_prefix != traits->trims_spaces)
      load(later_.emplace(), traits->trims_spaces ? kDummyPrefix : kNoDummyPrefix);
    facts_.eos = processor_.eos_id();
    facts_.bos = processor_.bos_id();
    if (facts_.eos < 0) refuse("it has no end-of-text token (</s>); one is required to end documents");
    const bool spaces_in_front_only = read_pieces();
    // The library joins adjacent unknown characters to one token.
    facts_.splits_words =
        spaces_in_front_only && traits->bpe && !changes_text_ && traits->escapes_spaces && (has_bytes_ || has_space_);
    facts_.dummy_prefix = traits->dummy_prefix;
    facts_.file_name = "tokenizer.model";
    // Merging takes less time for shorter texts. The scores of unigram models are added in single precision,
    // so that long texts lose accuracy and short ones may differ from the library's whole.
    if (spaces_in_front_only && has_known_rules(*traits)) part_bytes_ = traits->bpe ? 256 : 4096;
    by_lines_ = read_line_ends(serialized) && !changes_text_ && (has_bytes_ || !line_ends_.empty());
    if (traits->spaces_behind) {
      not_encoded_ = "treat_whitespace_as_suffix is not supported";
    } else if (by_lines_ && !line_ends_.empty() && line_ends_.front() < 0) {
      not_encoded_ = "it has a symbol for several line ends but none for one";
    } else if (!finder_.empty()) {
      not_encoded_ = changes_text_ ? fmt::format(
                                         "it changes text (normalization or remove_extra_whitespaces) next to "
                                         "added tokens such as {}",
                                         all_of(added_).back().content)
                                   : added_tokens_obstacle(added_, traits->dummy_prefix);
    }
    if (line_ends_.size() > 1) facts_.cuts = CutRule::between_lines;
    if (!by_lines_ || !finder_.empty()) facts_.cuts = CutRule::between_words;
    for (const AddedToken& token : added_.tokens) facts_.pieces.push_back(token.special ? "" : token.content);
  }

  std::unique_ptr<TextEncoder> encoder() const override;
  std::string name_of(int32_t id) const override {
    const auto pieces = static_cast<size_t>(processor_.GetPieceSize()), place = static_cast<size_t>(id);
    return place < pieces ? processor_.IdToPiece(id) : added_.tokens[place - pieces].content;
  }

  /// Encodes text with the library: the first part of a document, or a later one. Throws Code::data for text that the
  /// model does not cover, for example a control symbol that is an ordinary character.
  void encode(std::string_view text, std::vector<int>& ids, bool first = true) const {
    const auto& processor = first || !later_ ? processor_ : *later_;
    const auto status = processor.Encode(absl::string_view(text.data(), text.size()), &ids);
    if (!status.ok())
      throw Error(Code::data, fmt::format("{}: this tokenizer cannot encode the text: {}; train a different one",
                                          origin_, status.ToString()));
    if (spaces_as_bytes_) replace_space_marks(ids);
  }
  /// Returns the ids of the symbols for one line end, two, and so on; −1: none. Empty if there are none.
  const std::vector<int32_t>& line_ends() const { return line_ends_; }
  const AddedTokenFinder& finder() const { return finder_; }
  bool has_bytes() const { return has_bytes_; }
  /// True if the prefix is added here to this text.
  bool own_prefix(std::string_view text, bool starts_document, bool after_token) const {
    return own_prefix_ && (starts_document || (after_token && prefixes_again_)) && !text.empty() &&
           !(prefixes_words_only_ && text.front() == ' ');
  }
  bool changes_text() const { return changes_text_; }
  bool by_lines() const { return by_lines_; }
  size_t part_bytes() const { return part_bytes_; }
  int32_t byte_id(char byte) const { return byte_ids_[static_cast<uint8_t>(byte)]; }

 private:
  static std::vector<AddedToken> all_of(const AddedTokens& added) {
    std::vector<AddedToken> all = added.pieces;
    all.insert(all.end(), added.tokens.begin(), added.tokens.end());
    return all;
  }
  /// Returns true if pieces contain spaces only at the front.
  bool read_pieces() {
    bool spaces_in_front_only = true;
    const int count = processor_.GetPieceSize();
    for (int id = 0; id < count; ++id) {
      const std::string& piece = processor_.IdToPiece(id);
      spaces_in_front_only = spaces_in_front_only && piece.find(kSpaceMark, 1) == std::string::npos &&
                             piece.find(' ') == std::string::npos;
      has_space_ = has_space_ || piece == kSpaceMark;
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
    spaces_as_bytes_ = has_bytes_ && !has_space_;
    return spaces_in_front_only;
  }

  /// Finds the symbols for line ends. Returns true if lines can be encoded one by one: no other piece continues after
  /// a line end or, with such symbols, contains one.
  bool read_line_ends(std::string_view serialized) {
    const std::vector<ModelPiece> pieces = data::read_pieces(serialized);
    bool inside = false, at_end = false;
    for (size_t id = 0; id < pieces.size(); ++id) {
      const auto& [text, score, kind] = pieces[id];
      const size_t first = text.find('\n');
      if (first == text.npos || kind == PieceKind::unknown || kind == PieceKind::control) continue;
      const bool symbol = text.size() == 1 || kind == PieceKind::user_defined;
      if (symbol && text.find_first_not_of('\n') == text.npos) {
        if (line_ends_.size() < text.size()) line_ends_.resize(text.size(), -1);
        line_ends_[text.size() - 1] = static_cast<int32_t>(id);
      } else {
        (first + 1 < text.size() ? inside : at_end) = true;
      }
    }
    return !inside && !(at_end && !line_ends_.empty());
  }

  /// Replaces the three bytes of U+2581, by which the library represents a space without a piece, by the byte 0x20.
  void replace_space_marks(std::vector<int>& ids) const {
    const std::array<int, 3> mark = {byte_id(kSpaceMark[0]), byte_id(kSpaceMark[1]), byte_id(kSpaceMark[2])};
    auto to = ids.begin();
    for (auto from = ids.begin(); from != ids.end(); ++to) {
      const bool space = ids.end() - from >= 3 && std::equal(mark.begin(), mark.end(), from);
      *to = space ? byte_id(' ') : *from;
      from += space ? 3 : 1;
    }
    ids.erase(to, ids.end());
  }

  const std::string origin_;
  const AddedTokens added_;
  const AddedTokenFinder finder_;
  sentencepiece::SentencePieceProcessor processor_;
  std::optional<sentencepiece::SentencePieceProcessor> later_;  // for parts after the first; empty: the same
  std::array<int32_t, 256> byte_ids_{};
  std::vector<int32_t> line_ends_;
  std::string not_encoded_;  // why texts cannot be encoded as the library would; empty: they can
  bool has_bytes_ = false, has_space_ = false;
  bool spaces_as_bytes_ = false;  // there are bytes, but no piece for a space
  bool changes_text_ = false;     // the library normalises text or trims spaces: it gets the text as it is
  bool own_prefix_ = false;       // the prefix is added here, not by the library
  bool prefixes_again_ = false, prefixes_words_only_ = false;  // as in AddedTokens
  bool by_lines_ = false;                                      // lines are encoded one by one
  // Text that the library changes is split before spaces between letters into parts of about this size; 0: it is not.
  size_t part_bytes_ = 0;
};

class SentencePieceEncoder final : public TextEncoder {
 public:
  explicit SentencePieceEncoder(const SentencePieceModel& model)
      : model_(model), splits_words_(model.facts().splits_words) {}

  void append(std::string_view text, std::vector<int32_t>& ids, bool starts_document) override {
    bool after_token = false;
    model_.finder().split(
        text,
        [&](std::string_view part) {
          append_text(part, ids, starts_document && part.data() == text.data(), after_token);
        },
        [&](int32_t id) {
          ids.push_back(id);
          after_token = true;
        });
  }

 private:
  void append_text(std::string_view text, std::vector<int32_t>& ids, bool starts_document, bool after_token) {
    if (model_.changes_text()) return append_changed(text, ids, starts_document);
    std::string prefixed;
    if (model_.own_prefix(text, starts_document, after_token)) {
      prefixed.append(1, ' ').append(text);
      text = prefixed;
    }
    if (!model_.by_lines()) return append_words(text, ids);
    while (!text.empty()) {
      const size_t newline = text.find('\n');
      const bool own_symbol = newline != std::string_view::npos && !model_.line_ends().empty();
      const size_t length = newline == std::string_view::npos ? text.size() : newline + (own_symbol ? 0 : 1);
      append_words(text.substr(0, length), ids);
      text.remove_prefix(length);
      if (own_symbol) text.remove_prefix(append_line_ends(text, ids));
    }
  }
  /// Appends text that the library changes, in parts of moderate length if the model allows it.
  void append_changed(std::string_view text, std::vector<int32_t>& ids, bool starts_document) {
    const auto plain = [&](size_t at) { return std::isalnum(static_cast<unsigned char>(text[at])) != 0; };
    while (!text.empty()) {
      size_t length = text.size();
      for (size_t at = model_.part_bytes(); at > 0 && at + 1 < text.size(); ++at)
        if (text[at] == ' ' && plain(at - 1) && plain(at + 1)) {
          length = at;
          break;
        }
      model_.encode(text.substr(0, length), scratch_, starts_document);
      ids.insert(ids.end(), scratch_.begin(), scratch_.end());
      text.remove_prefix(length);
      starts_document = false;
    }
  }
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
