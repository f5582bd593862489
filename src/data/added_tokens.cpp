#include "data/added_tokens.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "data/files.h"
#include "data/model_traits.h"
#include "data/python_json.h"
#include "data/tokenizer_json.h"

namespace trainer::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kMetaspace = "\xE2\x96\x81";

/// One of the JSON files in a model's folder; null if it does not exist.
struct JsonFile {
  std::string name;
  json root;

  explicit JsonFile(const fs::path& path) : name(path.string()) {
    if (std::error_code none; !fs::exists(path, none)) return;
    root = parse_python_json(read_file(path));
    if (!root.is_object())
      throw Error(Code::data, fmt::format("{}: {}; download the file again, or remove it", name, why_no_object(root)));
  }
  [[noreturn]] void refuse(const std::string& place, const std::string& reason) const {
    throw Error(Code::data, fmt::format("{}: {}: {}", name, place, reason));
  }
  const json& member(const char* key) const { return member_of(root, key); }
};

int64_t token_id(const json& value) {
  return value.is_number_integer() && value >= 0 && value < (int64_t{1} << 24) ? value.get<int64_t>() : -1;
}

/// Returns a token from its properties, which `place` in the file has.
AddedToken token_of(const json& value, int64_t id, const JsonFile& file, const std::string& place) {
  const json& content = member_of(value, "content");
  if (id < 0 || !content.is_string() || content.get_ref<const std::string&>().empty())
    file.refuse(place, fmt::format("{}, expected a token with id and content", json_text(value)));
  AddedToken token{.id = static_cast<int32_t>(id), .content = content.get<std::string>()};
  const auto flag = [&](const char* key, bool otherwise) {
    const json& given = member_of(value, key);
    return given.is_boolean() ? given.get<bool>() : otherwise;
  };
  token.special = flag("special", false);
  token.normalized = flag("normalized", !token.special);
  token.single_word = flag("single_word", false);
  token.lstrip = flag("lstrip", false);
  token.rstrip = flag("rstrip", false);
  return token;
}

/// Collects the tokens that a file names for a purpose, such as "eos_token" and "additional_special_tokens".
void collect_named(const json& root, std::unordered_set<std::string>& names) {
  const auto collect = [&](const json& value) {
    const json& name = value.is_object() && value.contains("content") ? value["content"] : value;
    if (name.is_string()) names.insert(name.get<std::string>());
  };
  for (const auto& [key, value] : root.items()) {
    if (!key.ends_with("_token") && !key.ends_with("_tokens")) continue;
    collect(value);
    if (value.is_array() || key == "extra_special_tokens")
      for (const json& each : value) collect(each);
  }
}

std::vector<AddedToken> tokens_of(const JsonFile& file, const json& list, const char* place) {
  std::vector<AddedToken> tokens;
  if (!list.is_null() && !list.is_array()) file.refuse(place, "expected a list");
  for (const json& each : list) tokens.push_back(token_of(each, token_id(member_of(each, "id")), file, place));
  return tokens;
}

std::vector<AddedToken> tokens_of_settings(const JsonFile& settings) {
  std::vector<AddedToken> tokens;
  std::unordered_set<std::string> names;
  collect_named(settings.root, names);
  for (const auto& [id, token] : settings.member("added_tokens_decoder").items()) {
    const bool number = !id.empty() && id.size() < 9 && id.find_first_not_of("0123456789") == id.npos;
    tokens.push_back(token_of(token, number ? std::stoll(id) : -1, settings, "added_tokens_decoder: " + id));
    tokens.back().special = tokens.back().special || names.contains(tokens.back().content);
  }
  return tokens;
}

/// Reads added_tokens.json, which has only ids. Properties are those of tokenizer_config.json; tokens that are named
/// there or in special_tokens_map.json are special.
std::vector<AddedToken> tokens_of_ids(const JsonFile& ids, const JsonFile& settings, const JsonFile& map) {
  std::unordered_set<std::string> names;
  collect_named(settings.root, names);
  collect_named(map.root, names);
  const std::vector<AddedToken> known = tokens_of_settings(settings);
  std::vector<AddedToken> tokens;
  for (const auto& [content, value] : ids.root.items()) {
    const int64_t id = token_id(value);
    if (id < 0 || content.empty()) ids.refuse(content, fmt::format("{} is not a token id", json_text(value)));
    const auto same = std::ranges::find_if(
        known, [&](const AddedToken& token) { return token.id == id && token.content == content; });
    const bool special = names.contains(content);
    tokens.push_back(
        same != known.end()
            ? *same
            : AddedToken{
                  .id = static_cast<int32_t>(id), .content = content, .normalized = !special, .special = special});
  }
  return tokens;
}

/// True if these are the properties that SentencePiece gives a piece of this kind.
bool has_properties_of(const AddedToken& token, PieceKind kind) {
  const bool never_found = kind == PieceKind::unknown || kind == PieceKind::control;
  return (never_found || kind == PieceKind::user_defined) && token.special == never_found && !token.lstrip &&
         !token.rstrip && !token.single_word;
}

/// Sorts tokens by ids into those that the pieces lack and those that are pieces, with `symbols` also user-defined ones
/// of any properties. A token with the id of a piece must be that piece.
AddedTokens divide(std::vector<AddedToken> tokens, const std::vector<ModelPiece>& pieces, const JsonFile& file,
                   bool symbols = false) {
  const size_t count = pieces.size();
  AddedTokens added;
  std::unordered_set<std::string_view> names;
  for (const ModelPiece& piece : pieces) names.insert(piece.text);
  std::ranges::stable_sort(tokens, {}, &AddedToken::id);
  for (const AddedToken& token : tokens) {
    const auto id = static_cast<size_t>(token.id), next = count + added.tokens.size();
    if (id < count) {
      if (pieces[id].text != token.content)
        file.refuse(token.content,
                    fmt::format("id {} is {} in the vocabulary; use files that belong together", id, pieces[id].text));
      if (!has_properties_of(token, pieces[id].kind) || (symbols && pieces[id].kind == PieceKind::user_defined))
        added.pieces.push_back(token);
      continue;
    }
    if (id != next)
      file.refuse(token.content, id < next
                                     ? fmt::format("id {} is also the id of {}; each token needs an id of its own", id,
                                                   added.tokens.back().content)
                                     : fmt::format("id {}, but id {} has no token; add one with that id", id, next));
    if (!names.insert(token.content).second)
      file.refuse(token.content,
                  fmt::format("id {}, but a token with a lower id has the same text; remove one of them", id));
    added.tokens.push_back(token);
  }
  return added;
}

/// Returns the length of the white space (Unicode's White_Space) that the text begins with; 0: none.
size_t white_space(std::string_view text) {
  if (text.empty()) return 0;
  const auto first = static_cast<uint8_t>(text.front());
  if (first < 0x80) return first == ' ' || (first >= '\t' && first <= '\r') ? 1 : 0;
  for (const std::string_view space :
       {"\u0085", "\u00A0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006", "\u2007",
        "\u2008", "\u2009", "\u200A", "\u2028", "\u2029", "\u202F", "\u205F", "\u3000"})
    if (text.starts_with(space)) return space.size();
  return 0;
}

}  // namespace

AddedTokens find_added_tokens(std::string_view model, const fs::path& folder, std::string& difference) {
  const std::vector<ModelPiece> pieces = read_pieces(model);
  AddedTokens added;
  bool says_more = false;
  const JsonFile fast(folder / "tokenizer.json");
  // A run's folder has a file of this name with other contents.
  if (fast.member("model").is_object()) {
    const std::vector<AddedToken> all = tokens_of(fast, fast.member("added_tokens"), "added_tokens");
    difference = difference_from(model, fast.root, all);
    if (!difference.empty()) return added;
    // Unlike SentencePiece, the tokenizers library adds no prefix before a symbol.
    const ModelTraits traits = read_traits(model).value();
    added = divide(all, pieces, fast, traits.dummy_prefix && !traits.normalises && !traits.trims_spaces);
    added.normalizer = json_text(fast.member("normalizer"));
    added.pre_tokenizer = json_text(fast.member("pre_tokenizer"));
    if (!added.tokens.empty()) return added;
    says_more = traits.dummy_prefix && added.prefixes_words_only();
  }
  const JsonFile settings(folder / "tokenizer_config.json"), ids(folder / "added_tokens.json"),
      map(folder / "special_tokens_map.json");
  AddedTokens others = divide(tokens_of_ids(ids, settings, map), pieces, ids);
  others.pieces.clear();  // the file has no properties
  if (others.tokens.empty()) others = divide(tokens_of_settings(settings), pieces, settings);
  added.tokens = std::move(others.tokens);
  if (!fast.member("model").is_object()) added.pieces = std::move(others.pieces);
  added.legacy = settings.member("legacy") == true;
  if (added.tokens.empty() && added.pieces.empty() && !says_more) return {};
  return added;
}

std::vector<AddedToken> find_added_tokens(const std::vector<std::string>& vocabulary, const fs::path& folder) {
  std::vector<ModelPiece> pieces;
  for (const std::string& name : vocabulary) pieces.push_back({.text = name});
  const JsonFile settings(folder / "tokenizer_config.json"), ids(folder / "added_tokens.json"),
      map(folder / "special_tokens_map.json");
  const bool has_ids = !ids.root.empty();
  AddedTokens added = divide(has_ids ? tokens_of_ids(ids, settings, map) : tokens_of_settings(settings), pieces,
                             has_ids ? ids : settings);
  std::ranges::move(added.tokens, std::back_inserter(added.pieces));
  return added.pieces;
}

bool AddedTokens::prefixes_again() const {
  const json first = parse_json(normalizer.empty() ? "null" : normalizer),
             second = parse_json(pre_tokenizer.empty() ? "null" : pre_tokenizer);
  return std::ranges::any_of(steps_of(first), [](const json* step) { return member_of(*step, "type") == "Prepend"; }) ||
         std::ranges::any_of(steps_of(second), [](const json* step) {
           return member_of(*step, "type") == "Metaspace" && prefix_scheme(*step) == "always";
         });
}

bool AddedTokens::prefixes_words_only() const {
  const json second = parse_json(pre_tokenizer.empty() ? "null" : pre_tokenizer);
  return std::ranges::any_of(steps_of(second), [](const json* step) {
    return member_of(*step, "type") == "Metaspace" && prefix_scheme(*step) != "never";
  });
}

std::string with_added_tokens(std::string model, const AddedTokens& added) {
  if (added.empty()) return model;
  ordered_json root;
  for (const std::vector<AddedToken>* list : {&added.pieces, &added.tokens})
    for (const AddedToken& token : *list) {
      ordered_json entry = added_token_json<ordered_json>(token);
      entry["id"] = token.id;
      root["added_tokens"].push_back(std::move(entry));
    }
  if (added.legacy) root["legacy"] = true;
  if (!added.normalizer.empty()) root["normalizer"] = ordered_json::parse(added.normalizer);
  if (!added.pre_tokenizer.empty()) root["pre_tokenizer"] = ordered_json::parse(added.pre_tokenizer);
  return model + extension_field(json_text(root));
}

AddedTokens read_added_tokens(std::string_view serialized, const std::string& origin) {
  const auto traits = read_traits(serialized);
  if (!traits || traits->extension.empty()) return {};
  JsonFile file{fs::path()};
  file.name = origin;
  file.root = parse_json(traits->extension);
  AddedTokens added = divide(tokens_of(file, file.member("added_tokens"), "added tokens"), read_pieces(serialized),
                             file, /*symbols=*/true);
  added.legacy = file.member("legacy") == true;
  if (file.root.contains("normalizer")) added.normalizer = json_text(file.member("normalizer"));
  if (file.root.contains("pre_tokenizer")) added.pre_tokenizer = json_text(file.member("pre_tokenizer"));
  if (added.empty()) file.refuse("added tokens", "damaged; restore the file, or import the model again");
  return added;
}

std::string_view without_added_tokens(std::string_view serialized) {
  const auto traits = read_traits(serialized);
  if (!traits || traits->extension.empty()) return serialized;
  return serialized.substr(0, serialized.size() - extension_field(traits->extension).size());
}

std::string added_tokens_obstacle(const AddedTokens& added, bool dummy_prefix) {
  const bool replaces = !added.normalizer.empty() && added.normalizer != "null";
  for (const std::vector<AddedToken>* list : {&added.pieces, &added.tokens})
    for (const AddedToken& token : *list) {
      if (token.special) continue;
      const bool spaced =
          token.content.find(' ') != std::string::npos || token.content.find(kMetaspace) != std::string::npos;
      if (dummy_prefix && added.legacy && added.normalizer.empty())
        return fmt::format("its files add a space after each added token such as {}", token.content);
      if (token.single_word) return fmt::format("the added token {} has single_word", token.content);
      if (token.normalized && replaces && (spaced || token.lstrip || token.rstrip || added.prefixes_again()))
        return fmt::format("the added token {} is normalized, which changes it or the spaces at it", token.content);
    }
  return {};
}

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens) : tokens_(tokens) {
  for (const AddedToken& token : tokens_) passes_[token.normalized ? 1 : 0].add(token);
}

void AddedTokenFinder::Pass::add(const AddedToken& token) {
  tokens_.emplace(token.content, &token);
  starts_[static_cast<uint8_t>(token.content.front())] = true;
  finds_ = finds_ || !token.special;
  const auto place = std::ranges::lower_bound(lengths_, token.content.size(), std::greater());
  if (place == lengths_.end() || *place != token.content.size()) lengths_.insert(place, token.content.size());
}

const AddedToken* AddedTokenFinder::Pass::longest_at(std::string_view text, size_t at) const {
  if (!starts_[static_cast<uint8_t>(text[at])]) return nullptr;
  for (const size_t length : lengths_) {
    if (length > text.size() - at) continue;
    if (const auto found = tokens_.find(text.substr(at, length)); found != tokens_.end()) return found->second;
  }
  return nullptr;
}

std::pair<size_t, size_t> AddedTokenFinder::extent(std::string_view text, size_t begin, size_t at,
                                                   const AddedToken& token) {
  size_t first = std::max(begin, at), last = at + token.content.size();
  while (token.lstrip && first > begin) {
    size_t character = first - 1;
    while (character > begin && (text[character] & 0xC0) == 0x80) --character;
    if (white_space(text.substr(character)) != first - character) break;
    first = character;
  }
  while (token.rstrip) {
    const size_t size = white_space(text.substr(last));
    if (size == 0) break;
    last += size;
  }
  return {first, last};
}

}  // namespace trainer::data
