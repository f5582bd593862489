#include "data/sentencepiece_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <vector>

#include "base/utf8.h"
#include "data/added_tokens.h"
#include "data/model_traits.h"

namespace trainer::data {
namespace {

using nlohmann::ordered_json;

constexpr const char* kSpaceSymbol = "\xE2\x96\x81";

/// Returns "left right" for every split of a piece into two others, the one with the highest priority first.
ordered_json merges_of(const std::vector<ModelPiece>& pieces) {
  std::unordered_map<std::string_view, size_t> normal;
  std::vector<size_t> by_score;
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].kind != PieceKind::normal) continue;
    normal.emplace(pieces[id].text, id);
    by_score.push_back(id);
  }
  std::ranges::stable_sort(by_score, [&](size_t a, size_t b) { return pieces[a].score > pieces[b].score; });
  ordered_json merges = ordered_json::array();
  for (const size_t id : by_score) {
    const std::string_view text = pieces[id].text;
    std::vector<std::pair<size_t, size_t>> halves;
    for (size_t cut = utf8_character(text); cut < text.size(); cut += utf8_character(text.substr(cut))) {
      const auto left = normal.find(text.substr(0, cut)), right = normal.find(text.substr(cut));
      if (left != normal.end() && right != normal.end()) halves.emplace_back(left->second, right->second);
    }
    std::ranges::sort(halves);
    for (const auto& [left, right] : halves)
      merges.push_back(std::string(pieces[left].text) + " " + std::string(pieces[right].text));
  }
  return merges;
}

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

/// Returns the post-processor that begins texts with this token.
ordered_json template_of(size_t id, std::string_view text) {
  const ordered_json first{{"SpecialToken", {{"id", text}, {"type_id", 0}}}};
  const auto sequence = [](const char* name, int type) {
    return ordered_json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  ordered_json out{{"type", "TemplateProcessing"}};
  out["single"] = ordered_json::array({first, sequence("A", 0)});
  out["pair"] = ordered_json::array({first, sequence("A", 0), sequence("B", 1)});
  out["special_tokens"][std::string(text)] = {
      {"id", text}, {"ids", ordered_json::array({id})}, {"tokens", ordered_json::array({text})}};
  return out;
}

}  // namespace

std::optional<std::string> sentencepiece_to_json(std::string_view serialized, std::string_view begin) {
  const std::optional<ModelTraits> traits = read_traits(serialized);
  if (!traits || !traits->bpe || traits->normalises || traits->trims_spaces || !traits->escapes_spaces)
    return std::nullopt;
  const std::vector<ModelPiece> pieces = read_pieces(serialized);
  const AddedTokens more = read_added_tokens(serialized, "the tokenizer");
  ordered_json added = ordered_json::array(), unknown, decoders = ordered_json::array();
  ordered_json post_processor;  // null: none
  // Without a piece for a space, the byte of the space must not become those of U+2581.
  bool has_bytes = false, has_spaces = false;
  // A normalizer would also add the prefix to text after a user-defined piece or an added token.
  bool prepends = traits->dummy_prefix && (more.tokens.empty() || more.legacy);
  std::string vocab;
  for (size_t id = 0; id < pieces.size(); ++id) {
    const auto& [text, score, kind] = pieces[id];
    if (utf8_first_invalid(text) < text.size()) return std::nullopt;
    vocab += (id == 0 ? "{" : ",") + ordered_json(text).dump() + ":" + std::to_string(id);
    const bool special = kind == PieceKind::unknown || kind == PieceKind::control;
    if (special || kind == PieceKind::user_defined)
      added.push_back(added_token({.id = static_cast<int32_t>(id), .content = std::string(text), .special = special}));
    prepends = prepends && kind != PieceKind::user_defined;
    has_spaces = has_spaces || text.find(kSpaceSymbol) != text.npos;
    if (kind == PieceKind::unknown) unknown = text;
    if (!begin.empty() && text == begin) post_processor = template_of(id, text);
    has_bytes = has_bytes || kind == PieceKind::byte;
  }
  for (const AddedToken& token : more.tokens) {
    added.push_back(added_token(token));
    if (!begin.empty() && token.content == begin)
      post_processor = template_of(static_cast<size_t>(token.id), token.content);
  }
  ordered_json normalizer, pre_tokenizer;
  if (!more.normalizer.empty()) {
    normalizer = ordered_json::parse(more.normalizer);
    pre_tokenizer = ordered_json::parse(more.pre_tokenizer);
  } else if (!has_bytes || has_spaces) {
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
                     {"merges", merges_of(pieces)}};
  ordered_json out{{"version", "1.0"},
                   {"truncation", nullptr},
                   {"padding", nullptr},
                   {"added_tokens", added},
                   {"normalizer", normalizer},
                   {"pre_tokenizer", pre_tokenizer},
                   {"post_processor", post_processor},
                   {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
                   {"model", model}};
  std::string text = out.dump();
  // The vocabulary is inserted as text: an ordered object searches all its members for each new one.
  text.insert(text.size() - 2, ",\"vocab\":" + vocab + "}");
  return text + "\n";
}

}  // namespace trainer::data
