#include "data/tokenizer_json.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/json.h"
#include "data/model_traits.h"
#include "data/python_json.h"
#include "data/sentencepiece_json.h"

namespace trainer::data {
namespace {

using nlohmann::json;

constexpr const char* kMetaspace = "\xE2\x96\x81";

/// True if both are the same piece. Gemma's tokenizer.json has "\t" for the byte <0x09>.
bool same_piece(const ModelPiece& piece, const std::string& name) {
  if (piece.text == name) return true;
  return piece.kind == PieceKind::byte && name.size() == 1 &&
         piece.text == fmt::format("<0x{:02X}>", static_cast<uint8_t>(name.front()));
}

/// Describes the first piece that differs from the vocabulary of a tokenizer.json; empty: none.
std::string first_difference(const std::vector<ModelPiece>& pieces, const json& file,
                             const std::vector<AddedToken>& added) {
  std::vector<const std::string*> names(pieces.size());
  std::string beyond;  // a name that no piece and no added token has
  std::unordered_set<std::string_view> contents;
  for (const AddedToken& token : added) contents.insert(token.content);
  const auto put = [&](const std::string& name, int64_t id) {
    if (id >= 0 && id < static_cast<int64_t>(names.size())) {
      names[static_cast<size_t>(id)] = &name;
    } else if (!contents.contains(name)) {
      beyond = name;
    }
  };
  const json& vocab = member_of(member_of(file, "model"), "vocab");
  if (vocab.is_object())
    for (const auto& [name, id] : vocab.items()) put(name, id.is_number_integer() ? id.get<int64_t>() : -1);
  if (vocab.is_array())  // a unigram model has pieces with scores
    for (size_t id = 0; id < vocab.size(); ++id)
      if (const json& piece = vocab[id]; piece.is_array() && !piece.empty() && piece[0].is_string())
        put(piece[0].get_ref<const std::string&>(), static_cast<int64_t>(id));
  for (const AddedToken& token : added)
    if (const auto id = static_cast<size_t>(token.id); id < names.size() && names[id] == nullptr)
      names[id] = &token.content;
  for (size_t id = 0; id < pieces.size(); ++id)
    if (names[id] == nullptr || !same_piece(pieces[id], *names[id]))
      return fmt::format("id {} is {} in tokenizer.model and {} in tokenizer.json", id,
                         json_text(json(pieces[id].text)),
                         names[id] == nullptr ? "missing" : json_text(json(*names[id])));
  return beyond.empty() ? "" : fmt::format("tokenizer.model lacks {}", json_text(json(beyond)));
}

/// Describes how merges differ from those that the scores of the pieces give; empty: they do not. Merges of other
/// pieces than normal ones join nothing in text. Merges to a piece with score 0, the first one, may be missing, since
/// older versions of transformers left them out of tokenizer.json; tokenizer.model decides.
std::string other_merges(const std::vector<ModelPiece>& pieces, const json& merges) {
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < pieces.size(); ++id) ids.emplace(pieces[id].text, id);
  std::vector<std::pair<size_t, size_t>> found, expected = merges_of(pieces);
  const auto normal = [&](const std::string& name) {
    const auto place = ids.find(name);
    return place != ids.end() && pieces[place->second].kind == PieceKind::normal ? std::optional(place->second)
                                                                                 : std::nullopt;
  };
  float last = std::numeric_limits<float>::infinity();
  for (const json& merge : merges) {
    std::string left, right;
    if (merge.is_string()) {
      left = merge.get<std::string>();
      right = left.substr(std::min(left.find(' ') + 1, left.size()));
      left.resize(left.find(' ') == left.npos ? 0 : left.find(' '));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    }
    const auto first = normal(left), second = normal(right), joint = normal(left + right);
    if (!first || !second || !joint || pieces[*joint].score == 0) continue;
    if (pieces[*joint].score > last) return "model.merges: the order at " + json_text(merge);
    last = pieces[*joint].score;
    found.emplace_back(*first, *second);
  }
  std::erase_if(expected, [&](const auto& merge) {
    const auto joint = normal(std::string(pieces[merge.first].text).append(pieces[merge.second].text));
    return joint && pieces[*joint].score == 0;
  });
  std::ranges::sort(found);
  std::ranges::sort(expected);
  return found == expected ? "" : fmt::format("model.merges: {}, expected {}", found.size(), expected.size());
}

/// Describes how a tokenizer.json changes, splits or joins text differently than the model; empty: it does not.
std::string other_encoding(const ModelTraits& traits, const std::vector<ModelPiece>& pieces, const json& file) {
  bool prefixes = false, marks = false, has_bytes = false, has_marks = false, marks_inside = false;
  for (const auto& [text, score, kind] : pieces) {
    has_bytes = has_bytes || kind == PieceKind::byte;
    if (kind != PieceKind::normal) continue;
    has_marks = has_marks || text.find(kMetaspace) != text.npos;
    marks_inside = marks_inside || text.find(kMetaspace, 1) != text.npos;
  }
  const auto is = [](const json& step, const char* type) { return member_of(step, "type") == type; };
  for (const json* step : steps_of(member_of(file, "normalizer"))) {
    const json &pattern = member_of(*step, "pattern"), &prepended = member_of(*step, "prepend");
    if (is(*step, "Prepend") && (prepended == kMetaspace || prepended == " ")) {
      prefixes = true;
    } else if (is(*step, "Replace") && pattern == json{{"String", " "}} && member_of(*step, "content") == kMetaspace) {
      marks = true;
    } else if (!(is(*step, "Precompiled") && traits.normalises) &&
               !(traits.trims_spaces && (is(*step, "Strip") || pattern == json{{"Regex", " {2,}"}}))) {
      return "normalizer: " + json_text(*step).substr(0, 200);
    }
  }
  for (const json* step : steps_of(member_of(file, "pre_tokenizer"))) {
    const bool whole = !marks_inside || member_of(*step, "split") == false;  // true also splits before spaces
    if (is(*step, "Metaspace") && member_of(*step, "replacement") == kMetaspace && whole) {
      prefixes = prefixes || prefix_scheme(*step) != "never";
      marks = true;
    } else if (!(is(*step, "Split") && marks && member_of(*step, "pattern") == json{{"String", " "}}) &&
               !(is(*step, "WhitespaceSplit") && traits.trims_spaces)) {  // Split finds no spaces: they are marks
      return "pre_tokenizer: " + json_text(*step).substr(0, 200);
    }
  }
  if (prefixes != traits.dummy_prefix)
    return fmt::format("only {} adds a space before texts", prefixes ? "tokenizer.json" : "tokenizer.model");
  if (marks != has_marks && (has_bytes || has_marks)) return "normalizer: spaces";
  const json& model = member_of(file, "model");
  if (!traits.bpe) {
    const json& vocab = member_of(model, "vocab");
    for (size_t id = 0; id < pieces.size(); ++id)
      if (pieces[id].kind == PieceKind::normal &&
          (!vocab.is_array() || id >= vocab.size() || vocab[id].size() < 2 || !vocab[id][1].is_number() ||
           vocab[id][1].get<float>() != pieces[id].score))
        return fmt::format("model.vocab: the score of {}", pieces[id].text);
    return "";
  }
  for (const auto& [key, expected] : {std::pair("byte_fallback", has_bytes), {"ignore_merges", false}})
    if ((member_of(model, key) == true) != expected)
      return fmt::format("model.{}: {}", key, json_text(member_of(model, key)));
  return other_merges(pieces, member_of(model, "merges"));
}

}  // namespace

std::vector<const json*> steps_of(const json& step) {
  if (step.is_null()) return {};
  if (member_of(step, "type") != "Sequence") return {&step};
  std::vector<const json*> all;
  for (const char* list : {"normalizers", "pretokenizers"})
    for (const json& each : member_of(step, list))
      for (const json* inner : steps_of(each)) all.push_back(inner);
  return all;
}

std::string prefix_scheme(const json& metaspace) {
  const json& scheme = member_of(metaspace, "prepend_scheme");
  if (scheme.is_string()) return scheme.get<std::string>();
  return member_of(metaspace, "add_prefix_space") == false ? "never" : "always";
}

std::string difference_from(std::string_view model, const json& file, const std::vector<AddedToken>& added) {
  const std::vector<ModelPiece> pieces = read_pieces(model);
  std::string difference = first_difference(pieces, file, added);
  return difference.empty() ? other_encoding(read_traits(model).value(), pieces, file) : difference;
}

}  // namespace trainer::data
