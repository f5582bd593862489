#include "data/tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "data/files.h"
#include "data/model_traits.h"
#include "data/utf8.h"

namespace trainer::data {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581 stands for a space inside pieces
constexpr size_t kLongestCachedWord = 48, kMostCachedWords = size_t{1} << 17;

/// Returns the text of a piece, with spaces for marks.
std::string with_spaces(std::string text) {
  for (size_t at = text.find(kSpaceMark); at != std::string::npos; at = text.find(kSpaceMark, at + 1)) {
    text.replace(at, kSpaceMark.size(), " ");
  }
  return text;
}

}  // namespace

struct Tokenizer::State {
  std::string serialized, hash, origin;
  sentencepiece::SentencePieceProcessor processor;
  std::vector<std::string> pieces;  // text of each token
  std::array<int32_t, 256> byte_ids{};
  int32_t eos = -1, newline = -1;  // newline: id when "\n" is a symbol of its own, else −1
  bool has_bytes = false, splits_words = false;
  bool dummy_prefix = false, own_prefix = false;  // own: added here once a document, not by the library

  void read_pieces() {
    bool spaces_in_front_only = true;
    const int count = processor.GetPieceSize();
    for (int id = 0; id < count; ++id) {
      const std::string& piece = processor.IdToPiece(id);
      spaces_in_front_only = spaces_in_front_only && piece.find(kSpaceMark, 1) == std::string::npos &&
                             piece.find(' ') == std::string::npos;
      if (processor.IsByte(id)) {
        const auto byte = static_cast<uint8_t>(std::stoi(piece.substr(3, 2), nullptr, 16));  // "<0x41>"
        byte_ids[byte] = id;
        has_bytes = true;
        pieces.emplace_back(1, static_cast<char>(byte));
      } else if (processor.IsControl(id)) {
        pieces.emplace_back();
      } else {
        pieces.push_back(processor.IsUnknown(id) ? " \xE2\x81\x87 " : with_spaces(piece));  // " ⁇ ", as the library
      }
    }
    splits_words = spaces_in_front_only;
  }

  /// Encodes valid UTF-8 by the library. Throws Code::data where the model does not cover it, such as a control symbol
  /// that is an ordinary character.
  void encode(std::string_view text, std::vector<int>& ids) const {
    const auto status = processor.Encode(absl::string_view(text.data(), text.size()), &ids);
    if (!status.ok())
      throw Error(Code::data, fmt::format("{}: this tokenizer cannot encode the text: {}; train another one", origin,
                                          status.ToString()));
  }
};

Tokenizer::Tokenizer() : state_(std::make_unique<State>()) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::string& path) { return from_bytes(read_file(path), path); }

Tokenizer Tokenizer::from_bytes(std::string serialized, const std::string& origin) {
  Tokenizer tokenizer;
  State& state = *tokenizer.state_;
  const auto traits = read_traits(serialized);
  const auto refuse = [&](const std::string& reason) {
    throw Error(Code::data,
                fmt::format("{}: not a usable SentencePiece model ({} bytes): {}", origin, serialized.size(), reason));
  };
  if (!traits || serialized.empty()) refuse("expected a .model file written by SentencePiece or by this program");
  if (traits->nul_in_piece) refuse("a piece holds a NUL character");
  // A library that trims spaces would trim our prefix. Then each line keeps the library's prefix.
  state.own_prefix = traits->dummy_prefix && !traits->trims_spaces;
  const std::string loaded = state.own_prefix ? serialized + std::string(kNoDummyPrefix) : serialized;
  const auto status = state.processor.LoadFromSerializedProto(loaded);
  if (!status.ok()) refuse(status.ToString());
  state.eos = state.processor.eos_id();
  if (state.eos < 0) refuse("it has no end-of-text symbol (</s>), which documents end with");
  state.read_pieces();
  state.splits_words =
      state.splits_words && traits->bpe && !traits->normalises && !traits->trims_spaces && traits->escapes_spaces;
  state.dummy_prefix = traits->dummy_prefix;
  const int newline = state.processor.PieceToId("\n");
  if (newline >= 0 && !state.processor.IsUnknown(newline)) state.newline = newline;
  state.hash = hash_bytes(serialized);
  state.origin = origin;
  state.serialized = std::move(serialized);
  return tokenizer;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  Encoder(*this).append(text, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  StreamDecoder decoder(*this);
  std::string text;
  for (int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

int64_t Tokenizer::vocab_size() const { return static_cast<int64_t>(state_->pieces.size()); }
int32_t Tokenizer::eos() const { return state_->eos; }
const std::string& Tokenizer::bytes() const { return state_->serialized; }
std::string Tokenizer::hash() const { return state_->hash; }
bool Tokenizer::splits_words() const { return state_->splits_words; }
bool Tokenizer::dummy_prefix() const { return state_->dummy_prefix; }

std::string_view Tokenizer::piece(int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    throw Error(Code::data, fmt::format("token {} is not in the tokenizer's vocabulary of {}", id, vocab_size()));
  }
  return state_->pieces[static_cast<size_t>(id)];
}

std::string Tokenizer::name_of(int32_t id) const { return state_->processor.IdToPiece(id); }

int64_t Tokenizer::text_bytes(std::span<const int32_t> ids) const {
  int64_t bytes = 0;
  for (int32_t id : ids) bytes += static_cast<int64_t>(piece(id).size());
  return bytes;
}

void Encoder::append(std::string_view text, std::vector<int32_t>& ids, bool starts_document) {
  const Tokenizer::State& model = *tokenizer_.state_;
  std::string prefixed;
  if (starts_document && model.own_prefix && !text.empty()) {
    prefixed.append(1, ' ').append(text);
    text = prefixed;
  }
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    const bool own_symbol = newline != std::string_view::npos && model.newline >= 0;
    const size_t length = newline == std::string_view::npos ? text.size() : newline + (own_symbol ? 0 : 1);
    append_words(text.substr(0, length), ids);
    if (own_symbol) ids.push_back(model.newline);
    text.remove_prefix(length + (own_symbol ? 1 : 0));
  }
}

/// Cuts before each space where the model allows, and around what must become byte tokens.
void Encoder::append_words(std::string_view line, std::vector<int32_t>& ids) {
  const Tokenizer::State& model = *tokenizer_.state_;
  size_t begin = 0, at = 0;
  const auto flush = [&](size_t end) {
    if (end > begin)
      model.splits_words ? append_cached(line.substr(begin, end - begin), ids)
                         : append_plain(line.substr(begin, end - begin), ids);
    begin = end;
  };
  while (at < line.size()) {
    const auto byte = static_cast<uint8_t>(line[at]);
    if (byte < 0x80) {
      if (byte == ' ' && model.splits_words) flush(at);
      ++at;
      continue;
    }
    const size_t length = utf8_character(line.substr(at));
    const bool to_bytes = model.has_bytes && (length == 0 || line.substr(at, length) == kSpaceMark);
    if (!to_bytes) {
      at += std::max<size_t>(length, 1);
      continue;
    }
    flush(at);
    for (const size_t end = at + std::max<size_t>(length, 1); at < end; ++at) {
      ids.push_back(model.byte_ids[static_cast<uint8_t>(line[at])]);
    }
    begin = at;
  }
  flush(line.size());
}

void Encoder::append_cached(std::string_view word, std::vector<int32_t>& ids) {
  if (word.size() > kLongestCachedWord) return append_plain(word, ids);
  auto found = words_.find(word);
  if (found == words_.end()) {
    if (words_.size() >= kMostCachedWords) words_.clear();
    tokenizer_.state_->encode(word, scratch_);
    found = words_.emplace(word, scratch_).first;
  }
  ids.insert(ids.end(), found->second.begin(), found->second.end());
}

void Encoder::append_plain(std::string_view text, std::vector<int32_t>& ids) {
  tokenizer_.state_->encode(text, scratch_);
  ids.insert(ids.end(), scratch_.begin(), scratch_.end());
}

std::string StreamDecoder::push(int32_t id) {
  std::string_view piece = tokenizer_.piece(id);
  if (at_start_ && !piece.empty()) {
    if (tokenizer_.dummy_prefix() && piece.front() == ' ') piece.remove_prefix(1);
    at_start_ = false;
  }
  pending_ += piece;
  std::string text = std::move(pending_);
  pending_ = text.substr(text.size() - utf8_unfinished(text));
  text.resize(text.size() - pending_.size());
  return text;
}

std::string StreamDecoder::finish() {
  at_start_ = true;
  return std::exchange(pending_, {});
}

}  // namespace trainer::data
