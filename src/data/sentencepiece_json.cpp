#include "data/sentencepiece_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/utf8.h"
#include "data/added_tokens.h"

namespace trainer::data {
namespace {

using nlohmann::ordered_json;

constexpr const char* kSpaceSymbol = "\xE2\x96\x81";

ordered_json added_token(const AddedToken& token) {
  ordered_json entry{{"id", token.id}};
  entry.update(added_token_json<ordered_json>(token));
  return entry;
}

/// Returns the steps that replace spaces. Unlike a pre-tokenizer, the normalizer also adds the prefix to text that
/// begins with a space, as SentencePiece does.
ordered_json space_normalizer() {
  return {{"type", "Sequence"},
          {"normalizers",
           ordered_json::array(
               {ordered_json{{"type", "Prepend"}, {"prepend", kSpaceSymbol}},
                ordered_json{{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceSymbol}}})}};
}
ordered_json metaspace(bool prefix) {
  return {{"type", "Metaspace"},
          {"replacement", kSpaceSymbol},
          {"prepend_scheme", prefix ? "first" : "never"},
          {"split", false}};
}

/// Says why tokenizer.json cannot represent a model; empty: it can.
std::string obstacle_of(const std::optional<ModelTraits>& traits, const std::vector<ModelPiece>& pieces) {
  if (!traits || !traits->bpe || traits->normalises || traits->trims_spaces || !traits->escapes_spaces)
    return "of SentencePiece models, tokenizer.json can represent only BPE without normalisation";
  std::unordered_set<std::string_view> names;
  for (const ModelPiece& piece : pieces) names.insert(piece.text);
  for (const auto& [text, score, kind] : pieces) {
    if (utf8_first_invalid(text) < text.size()) return "a piece is not valid UTF-8";
    if (kind == PieceKind::unused) return fmt::format("SentencePiece splits the unused piece {} again", text);
    for (size_t at = 0; at < text.size() && kind == PieceKind::normal; at += utf8_character(text.substr(at)))
      if (const auto character = text.substr(at, utf8_character(text.substr(at))); !names.contains(character))
        return fmt::format("SentencePiece makes the piece {} from {}, which is not a piece", text, character);
  }
  return "";
}

}  // namespace

std::vector<std::pair<size_t, size_t>> merges_of(const std::vector<ModelPiece>& pieces) {
  std::unordered_map<std::string_view, size_t> normal;
  std::vector<size_t> by_score;
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].kind != PieceKind::normal) continue;
    normal.emplace(pieces[id].text, id);
    by_score.push_back(id);
  }
  std::ranges::stable_sort(by_score, [&](size_t a, size_t b) { return pieces[a].score > pieces[b].score; });
  std::vector<std::pair<size_t, size_t>> merges;
  for (const size_t id : by_score) {
    const std::string_view text = pieces[id].text;
    const size_t first = merges.size();
    for (size_t cut = std::max<size_t>(1, utf8_character(text)); cut < text.size();
         cut += std::max<size_t>(1, utf8_character(text.substr(cut)))) {
      const auto left = normal.find(text.substr(0, cut)), right = normal.find(text.substr(cut));
      if (left != normal.end() && right != normal.end()) merges.emplace_back(left->second, right->second);
    }
    std::sort(merges.begin() + static_cast<ptrdiff_t>(first), merges.end());
  }
  return merges;
}

std::optional<std::string> sentencepiece_to_json(std::string_view serialized, const NamedId& before,
                                                 const NamedId& after) {
  const std::optional<ModelTraits> traits = read_traits(serialized);
  const std::vector<ModelPiece> pieces = read_pieces(serialized);
  if (const std::string obstacle = obstacle_of(traits, pieces); !obstacle.empty()) {
    log::warning("the tokenizer is written as tokenizer.model only: {}", obstacle);
    return std::nullopt;
  }
  const AddedTokens more = read_added_tokens(serialized, "the tokenizer");
  ordered_json added = ordered_json::array(), unknown, decoders = ordered_json::array(), merges = ordered_json::array();
  for (const auto& [left, right] : merges_of(pieces))
    merges.push_back(std::string(pieces[left].text) + " " + std::string(pieces[right].text));
  // Without a piece for a space, the byte of the space must not become those of U+2581.
  bool has_bytes = false, has_spaces = false;
  // A normalizer would also add the prefix to text after a user-defined piece or an added token that is found in text.
  bool prepends = traits->dummy_prefix;
  std::string vocab;
  for (size_t id = 0; id < pieces.size(); ++id) {
    const auto& [text, score, kind] = pieces[id];
    vocab += (id == 0 ? "{" : ",") + ordered_json(text).dump() + ":" + std::to_string(id);
    const bool special = kind == PieceKind::unknown || kind == PieceKind::control;
    const auto other = std::ranges::find(more.pieces, static_cast<int32_t>(id), &AddedToken::id);
    if (other != more.pieces.end())
      added.push_back(added_token(*other));
    else if (special || kind == PieceKind::user_defined)
      added.push_back(added_token({.id = static_cast<int32_t>(id), .content = std::string(text), .special = special}));
    prepends = prepends && kind != PieceKind::user_defined;
    has_spaces = has_spaces || text == kSpaceSymbol;
    if (kind == PieceKind::unknown) unknown = text;
    has_bytes = has_bytes || kind == PieceKind::byte;
  }
  for (const AddedToken& token : more.tokens) added.push_back(added_token(token));
  for (const std::vector<AddedToken>* list : {&more.pieces, &more.tokens})
    for (const AddedToken& token : *list) prepends = prepends && (token.special || more.legacy);
  ordered_json normalizer, pre_tokenizer;
  if (!more.normalizer.empty()) {
    normalizer = ordered_json::parse(more.normalizer);
    pre_tokenizer = ordered_json::parse(more.pre_tokenizer);
  } else if (!has_bytes || has_spaces) {
    if (traits->dummy_prefix && !prepends)
      log::warning(
          "tokenizer.json cannot represent the space that tokenizer.model adds before texts that begin with a space, "
          "if "
          "tokens are found in text; programs that read tokenizer.json give such texts other tokens");
    (prepends ? normalizer : pre_tokenizer) = prepends ? space_normalizer() : metaspace(traits->dummy_prefix);
  } else if (traits->dummy_prefix) {
    normalizer = {{"type", "Prepend"}, {"prepend", " "}};
  }
  decoders.push_back({{"type", "Replace"}, {"pattern", {{"String", kSpaceSymbol}}}, {"content", " "}});
  if (has_bytes) decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  if (traits->dummy_prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  ordered_json model{{"type", "BPE"},
                     {"dropout", nullptr},
                     {"unk_token", unknown},
                     {"continuing_subword_prefix", nullptr},
                     {"end_of_word_suffix", nullptr},
                     {"fuse_unk", true},
                     {"byte_fallback", has_bytes},
                     {"ignore_merges", false},
                     {"merges", merges}};
  ordered_json out{{"version", "1.0"},
                   {"truncation", nullptr},
                   {"padding", nullptr},
                   {"added_tokens", added},
                   {"normalizer", normalizer},
                   {"pre_tokenizer", pre_tokenizer},
                   {"post_processor", post_processor_of(before, after)},
                   {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
                   {"model", model}};
  std::string text = out.dump();
  // The vocabulary is inserted as text: an ordered object searches all its members for each new one.
  text.insert(text.size() - 2, ",\"vocab\":" + vocab + "}");
  return text + "\n";
}

}  // namespace trainer::data
