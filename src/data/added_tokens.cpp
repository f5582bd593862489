#include "data/added_tokens.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "data/files.h"
#include "data/model_traits.h"

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
    root = parse_json(read_file(path));
    if (!root.is_object())
      throw Error(Code::data, fmt::format("{}: not a JSON object, or values are nested too deeply; download the file "
                                          "again, or remove it",
                                          name));
  }
  [[noreturn]] void refuse(const std::string& place, const std::string& reason) const {
    throw Error(Code::data, fmt::format("{}: {}: {}", name, place, reason));
  }
  const json& member(const char* key) const { return member_of(root, key); }
  static const json& member_of(const json& object, const char* key) {
    static const json kNone;
    const auto found = object.is_object() ? object.find(key) : object.end();
    return object.is_object() && found != object.end() ? *found : kNone;
  }
};

int64_t token_id(const json& value) {
  return value.is_number_integer() && value >= 0 && value < (int64_t{1} << 24) ? value.get<int64_t>() : -1;
}

/// Returns a token from its properties, which `place` in the file has.
AddedToken token_of(const json& value, int64_t id, const JsonFile& file, const std::string& place) {
  const json& content = JsonFile::member_of(value, "content");
  if (id < 0 || !content.is_string() || content.get_ref<const std::string&>().empty())
    file.refuse(place, fmt::format("{}, expected a token with id and content", json_text(value)));
  AddedToken token{.id = static_cast<int32_t>(id), .content = content.get<std::string>()};
  const auto flag = [&](const char* key, bool otherwise) {
    const json& given = JsonFile::member_of(value, key);
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
  for (const json& each : list)
    tokens.push_back(token_of(each, token_id(JsonFile::member_of(each, "id")), file, place));
  return tokens;
}

std::vector<AddedToken> tokens_of_settings(const JsonFile& settings) {
  std::vector<AddedToken> tokens;
  for (const auto& [id, token] : settings.member("added_tokens_decoder").items()) {
    const bool number = !id.empty() && id.size() < 9 && id.find_first_not_of("0123456789") == id.npos;
    tokens.push_back(token_of(token, number ? std::stoll(id) : -1, settings, "added_tokens_decoder: " + id));
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

/// Returns the tokens that the pieces lack, by ids. A token with the id of a piece must be that piece.
std::vector<AddedToken> lacking(std::vector<AddedToken> tokens, const std::vector<ModelPiece>& pieces,
                                const JsonFile& file) {
  const size_t count = pieces.size();
  std::unordered_set<std::string_view> names;
  for (const ModelPiece& piece : pieces) names.insert(piece.text);
  for (const auto& [id, content, _1, _2, _3, _4, _5] : tokens)
    if (const auto place = static_cast<size_t>(id); place < count && pieces[place].text != content)
      file.refuse(content, fmt::format("id {} is {} in tokenizer.model; use files that belong together", id,
                                       pieces[place].text));
  std::erase_if(tokens, [&](const AddedToken& token) { return static_cast<size_t>(token.id) < count; });
  std::ranges::stable_sort(tokens, {}, &AddedToken::id);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const AddedToken& token = tokens[i];
    if (const auto next = static_cast<int32_t>(count + i); token.id != next)
      file.refuse(token.content,
                  token.id < next ? fmt::format("id {} is also the id of {}; each token needs an id of its own",
                                                token.id, tokens[i - 1].content)
                                  : fmt::format("id {}, but id {} has no token; add one with that id", token.id, next));
    if (!names.insert(token.content).second)
      file.refuse(token.content,
                  fmt::format("id {}, but a token with a lower id has the same text; remove one of them", token.id));
  }
  return tokens;
}

/// True if both are the same piece. Gemma's tokenizer.json has "\t" for the byte <0x09>.
bool same_piece(const ModelPiece& piece, const std::string& name) {
  if (piece.text == name) return true;
  return piece.kind == PieceKind::byte && name.size() == 1 &&
         piece.text == fmt::format("<0x{:02X}>", static_cast<uint8_t>(name.front()));
}

/// Describes the first piece that differs from the vocabulary of a tokenizer.json; empty: none.
std::string first_difference(const std::vector<ModelPiece>& pieces, const JsonFile& file,
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
  const json& vocab = JsonFile::member_of(file.member("model"), "vocab");
  if (vocab.is_object())
    for (const auto& [name, id] : vocab.items()) put(name, token_id(id));
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

/// True if this step of a tokenizer.json adds the dummy prefix to every text between added tokens.
bool prepends_again(const json& step) {
  const json& type = JsonFile::member_of(step, "type");
  for (const char* list : {"normalizers", "pretokenizers"})
    for (const json& each : JsonFile::member_of(step, list))
      if (prepends_again(each)) return true;
  if (type != "Metaspace") return type == "Prepend";
  const json& scheme = JsonFile::member_of(step, "prepend_scheme");  // older files have only add_prefix_space
  return scheme == "always" || (scheme.is_null() && JsonFile::member_of(step, "add_prefix_space") != false);
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
  const JsonFile fast(folder / "tokenizer.json");
  // A run's folder has a file of this name with other contents.
  if (fast.member("model").is_object()) {
    const std::vector<AddedToken> all = tokens_of(fast, fast.member("added_tokens"), "added_tokens");
    difference = first_difference(pieces, fast, all);
    if (!difference.empty()) return added;
    added.tokens = lacking(all, pieces, fast);
    added.normalizer = json_text(fast.member("normalizer"));
    added.pre_tokenizer = json_text(fast.member("pre_tokenizer"));
    if (!added.tokens.empty()) return added;
  }
  const JsonFile settings(folder / "tokenizer_config.json"), ids(folder / "added_tokens.json"),
      map(folder / "special_tokens_map.json");
  added.legacy = settings.member("legacy") == true;
  added.tokens = lacking(tokens_of_ids(ids, settings, map), pieces, ids);
  if (added.tokens.empty()) added.tokens = lacking(tokens_of_settings(settings), pieces, settings);
  return added;
}

std::string with_added_tokens(std::string model, const AddedTokens& added) {
  if (added.tokens.empty()) return model;
  ordered_json root;
  for (const AddedToken& token : added.tokens) {
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
  AddedTokens added;
  const auto traits = read_traits(serialized);
  if (!traits || traits->extension.empty()) return added;
  JsonFile file{fs::path()};
  file.name = origin;
  file.root = parse_json(traits->extension);
  added.tokens = lacking(tokens_of(file, file.member("added_tokens"), "added tokens"), read_pieces(serialized), file);
  if (added.tokens.empty()) file.refuse("added tokens", "damaged; restore the file, or import the model again");
  added.legacy = file.member("legacy") == true;
  if (file.root.contains("normalizer")) added.normalizer = json_text(file.member("normalizer"));
  if (file.root.contains("pre_tokenizer")) added.pre_tokenizer = json_text(file.member("pre_tokenizer"));
  return added;
}

std::string_view without_added_tokens(std::string_view serialized) {
  const auto traits = read_traits(serialized);
  if (!traits || traits->extension.empty()) return serialized;
  return serialized.substr(0, serialized.size() - extension_field(traits->extension).size());
}

std::string added_tokens_obstacle(const AddedTokens& added, bool dummy_prefix) {
  const bool repeated =
      dummy_prefix &&
      (added.legacy || (!added.normalizer.empty() && (prepends_again(parse_json(added.normalizer)) ||
                                                      prepends_again(parse_json(added.pre_tokenizer)))));
  for (const AddedToken& token : added.tokens) {
    if (token.special) continue;
    const bool spaced =
        token.content.find(' ') != std::string::npos || token.content.find(kMetaspace) != std::string::npos;
    if (repeated) return fmt::format("its files add a space after each added token such as {}", token.content);
    if (token.single_word) return fmt::format("the added token {} has single_word", token.content);
    if (token.normalized && spaced && !added.normalizer.empty() && added.normalizer != "null")
      return fmt::format("the added token {} has spaces and is normalized", token.content);
  }
  return {};
}

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens) : tokens_(tokens) {
  for (const bool normalized : {false, true}) {
    Pass pass;
    bool found = false;
    for (const AddedToken& token : tokens_) {
      if (token.normalized != normalized) continue;
      pass.add(token);
      found = found || !token.special;
    }
    if (found) passes_.push_back(std::move(pass));
  }
}

void AddedTokenFinder::Pass::add(const AddedToken& token) {
  tokens_.emplace(token.content, &token);
  starts_[static_cast<uint8_t>(token.content.front())] = true;
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
