#include "data/bpe_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "data/nfc.h"
#include "data/python_json.h"
#include "data/split_pattern.h"

namespace trainer::data {
namespace {

using nlohmann::json;

constexpr size_t kMostTokens = size_t{1} << 24;

/// Reads the members of a tokenizer.json; error messages name the member.
class Reader {
 public:
  explicit Reader(const std::string& origin) : origin_(origin) {}

  BpeSpec read(std::string_view text) {
    const json root = parse_json(text);
    if (!root.is_object() || !root.contains("model") || !root["model"].is_object())
      refuse("model", "missing: not a tokenizer.json, or values are nested too deeply");
    const json& model = root["model"];
    check_model(model);
    read_normalizer(member_of(root, "normalizer"));
    read_pre_tokenizer(member_of(root, "pre_tokenizer"));
    read_vocabulary(model, member_of(root, "added_tokens"));
    read_merges(model);
    find_eos();
    find_bos(member_of(root, "post_processor"));
    return std::move(spec_);
  }

 private:
  [[noreturn]] void refuse(const std::string& place, const std::string& reason) const {
    throw Error(Code::data, format("{}: {}: {}", origin_, place, reason));
  }
  static std::string type_of(const json& value) { return json_text(member_of(value, "type")); }
  bool flag(const json& object, const char* key, bool otherwise) const {
    const json& value = member_of(object, key);
    if (!value.is_null() && !value.is_boolean()) refuse(key, format("{}, expected true or false", json_text(value)));
    return value.is_null() ? otherwise : value.get<bool>();
  }

  void check_model(const json& model) {
    if (const json& type = member_of(model, "type"); !type.is_null() && type != "BPE")
      refuse("model.type",
             format("{} is not supported; use a byte-level BPE or a SentencePiece model", json_text(type)));
    if (flag(model, "byte_fallback", false))
      refuse("model.byte_fallback",
             "true is not supported; put the tokenizer.model from which this file was converted next to it "
             "(transformers 5 "
             "does not save it: take it from the original model)");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const json& value = member_of(model, key); !value.is_null() && value != "")
        refuse(std::string("model.") + key, format("{} is not supported", json_text(value)));
    spec_.ignore_merges = flag(model, "ignore_merges", false);
  }

  void read_normalizer(const json& step) {
    const json& steps = member_of(step, "normalizers");
    if (member_of(step, "type") == "Sequence" && steps.is_array() && steps.size() <= 1)
      return steps.empty() ? void() : read_normalizer(steps[0]);
    if (step.is_null()) return;
    if (member_of(step, "type") != "NFC")
      refuse("normalizer", format("{} is not supported; expected none or \"NFC\"", type_of(step)));
    if (!has_nfc())
      refuse("normalizer", "\"NFC\" is not supported by this build; build it with utf8proc (Debian: libutf8proc-dev)");
    spec_.nfc = true;
  }

  void read_pre_tokenizer(const json& step) {
    const json& type = member_of(step, "type");
    if (type == "Sequence") {
      const json& steps = member_of(step, "pretokenizers");
      if (!steps.is_array() || steps.empty()) refuse("pre_tokenizer", "empty sequence; expected at least one step");
      for (const json& each : steps) read_step(each);
    } else {
      read_step(step);
    }
    if (!byte_level_)
      refuse("pre_tokenizer",
             format("{} is not supported: expected ByteLevel, on its own or last in a sequence", json_text(type)));
  }
  void read_step(const json& step) {
    const json& type = member_of(step, "type");
    if (byte_level_) refuse("pre_tokenizer", format("{} after ByteLevel is not supported", json_text(type)));
    if (type == "ByteLevel") {
      if (flag(step, "add_prefix_space", true)) refuse("pre_tokenizer.add_prefix_space", "true is not supported");
      if (flag(step, "use_regex", true)) spec_.splits.push_back({std::string(kGpt2Pattern)});
      byte_level_ = true;
    } else if (type == "Digits") {
      spec_.splits.push_back({flag(step, "individual_digits", false) ? "\\p{N}" : "\\p{N}+"});
    } else if (type == "Split") {
      const json& pattern = member_of(member_of(step, "pattern"), "Regex");
      const bool inverted = flag(step, "invert", false);
      if (!pattern.is_string() || member_of(step, "behavior") != (inverted ? "Removed" : "Isolated"))
        refuse("pre_tokenizer", format("{} is not supported; expected a Split with a regular expression and "
                                       "behavior Isolated, or Removed with invert",
                                       json_text(step)));
      spec_.splits.push_back({pattern.get<std::string>(), inverted});
    } else {
      refuse("pre_tokenizer", format("{} is not supported", json_text(type)));
    }
  }

  size_t id_in(const json& value, const std::string& place) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= kMostTokens)
      refuse(place, format("{} is not a token id", json_text(value)));
    return value.get<size_t>();
  }

  void read_vocabulary(const json& model, const json& added) {
    const json& vocab = member_of(model, "vocab");
    if (!vocab.is_object() || vocab.empty()) refuse("model.vocab", "missing");
    std::vector<const json*> extra;
    if (!added.is_null() && !added.is_array()) refuse("added_tokens", "expected a list");
    for (const json& token : added) extra.push_back(&token);
    const size_t most = vocab.size() + extra.size();
    spec_.names.resize(most);
    spec_.pieces.resize(most);
    std::vector<bool> known(most);
    size_t size = 0;
    const auto put = [&](size_t id, const std::string& name) {
      if (id >= most) refuse(name, format("id {} is too high: some ids below it have no token", id));
      spec_.names[id] = name;
      known[id] = true;
      size = std::max(size, id + 1);
    };
    for (const auto& [name, value] : vocab.items()) {
      const size_t id = id_in(value, "model.vocab: " + name);
      if (id < most && known[id]) refuse("model.vocab: " + name, format("id {} occurs twice", id));
      put(id, name);
      ids_.emplace(name, static_cast<int32_t>(id));
    }
    std::vector<bool> is_added(most);
    std::unordered_map<std::string, size_t> beyond;  // ids of tokens that the vocabulary lacks
    for (const json* token : extra) {
      const json& content = member_of(*token, "content");
      if (!content.is_string() || content.get_ref<const std::string&>().empty())
        refuse("added_tokens", format("{} has no content", json_text(*token)));
      const std::string name = content.get<std::string>();
      const size_t id = id_in(member_of(*token, "id"), "added_tokens: " + name);
      if (id < most && known[id] && spec_.names[id] != name)
        refuse("added_tokens: " + name, format("id {} is also the id of {}", id, spec_.names[id]));
      // The tokenizers library ignores the file's ids. Other programs that read the file would use other tokens.
      const auto same = ids_.find(name);
      const size_t given = same != ids_.end() ? static_cast<size_t>(same->second)
                                              : beyond.emplace(name, vocab.size() + beyond.size()).first->second;
      if (given != id)
        refuse("added_tokens: " + name, format("id {}, but the tokenizers library gives it id {}: that of the "
                                               "vocabulary, or the next one; order the list by ids, without gaps",
                                               id, given));
      put(id, name);
      is_added[id] = true;
      add_token(*token, static_cast<int32_t>(id), name);
    }
    spec_.names.resize(size);
    spec_.pieces.resize(size);
    if (const auto hole = std::find(known.begin(), known.begin() + static_cast<ptrdiff_t>(size), false);
        hole != known.begin() + static_cast<ptrdiff_t>(size))
      refuse("model.vocab", format("id {} has no token", hole - known.begin()));
    for (size_t id = 0; id < size; ++id)
      if (!is_added[id]) spec_.pieces[id] = bytes_of(spec_.names[id]);
    read_bytes();
  }
  void add_token(const json& token, int32_t id, const std::string& name) {
    const bool special = flag(token, "special", false);
    spec_.added.push_back({.id = id,
                           .content = name,
                           .single_word = flag(token, "single_word", false),
                           .lstrip = flag(token, "lstrip", false),
                           .rstrip = flag(token, "rstrip", false),
                           .normalized = flag(token, "normalized", !special),
                           .special = special});
    if (special) return;
    if (spec_.added.back().single_word) refuse("added_tokens: " + name, "single_word is not supported");
    spec_.pieces[static_cast<size_t>(id)] = name;
  }
  /// Returns the bytes that a name of the vocabulary represents.
  std::string bytes_of(const std::string& name) const {
    static const std::unordered_map<std::string_view, char> kBytes = [] {
      std::unordered_map<std::string_view, char> bytes;
      for (size_t byte = 0; byte < 256; ++byte) bytes[byte_characters()[byte]] = static_cast<char>(byte);
      return bytes;
    }();
    std::string bytes;
    for (std::string_view rest = name; !rest.empty();) {
      const size_t length = std::max<size_t>(1, utf8_character(rest));
      const auto found = kBytes.find(rest.substr(0, length));
      if (found == kBytes.end()) refuse("model.vocab: " + name, "not written in GPT-2's characters for bytes");
      bytes += found->second;
      rest.remove_prefix(length);
    }
    return bytes;
  }
  void read_bytes() {
    for (size_t byte = 0; byte < 256; ++byte) {
      const auto found = ids_.find(byte_characters()[byte]);
      if (found == ids_.end()) refuse("model.vocab", format("no token for the byte 0x{:02x}", byte));
      spec_.byte_ids[byte] = found->second;
    }
  }

  void read_merges(const json& model) {
    const json& merges = member_of(model, "merges");
    if (!merges.is_array()) refuse("model.merges", "missing");
    const auto id_of = [&](const std::string& name, size_t index) {
      const auto found = ids_.find(name);
      if (found == ids_.end()) refuse(format("model.merges[{}]", index), format("{} is not a token", name));
      return found->second;
    };
    spec_.merges.reserve(merges.size());
    for (size_t i = 0; i < merges.size(); ++i) {
      const json& merge = merges[i];
      std::string left, right;
      if (merge.is_string()) {
        const auto& text = merge.get_ref<const std::string&>();
        const size_t space = text.find(' ');
        if (space == text.npos || text.find(' ', space + 1) != text.npos)
          refuse(format("model.merges[{}]", i), format("{} is not a pair of tokens", json_text(merge)));
        left = text.substr(0, space);
        right = text.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else {
        refuse(format("model.merges[{}]", i), format("{} is not a pair of tokens", json_text(merge)));
      }
      spec_.merges.push_back({id_of(left, i), id_of(right, i), id_of(left + right, i)});
    }
  }

  /// Returns the special token with this name; −1: none.
  int32_t special(std::string_view name) const {
    const auto found = std::ranges::find_if(
        spec_.added, [&](const AddedToken& token) { return token.special && token.content == name; });
    return found == spec_.added.end() ? -1 : found->id;
  }

  /// Finds the special token that ends documents: one with a usual name, or the only special token.
  void find_eos() {
    for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]"})
      if (spec_.eos < 0) spec_.eos = special(name);
    if (spec_.eos < 0 && std::ranges::count(spec_.added, true, &AddedToken::special) == 1)
      spec_.eos = std::ranges::find(spec_.added, true, &AddedToken::special)->id;
  }

  /// Finds the tokens that a post-processor adds. Without one before the text, BOS is a special token with a usual
  /// name, which is then not added automatically.
  void find_bos(const json& post_processor) {
    spec_.ends = ends_of(post_processor);
    for (const NamedId& token : {spec_.ends.before, spec_.ends.after})
      if (token.id >= static_cast<int32_t>(spec_.names.size()))
        refuse("post_processor", format("{}: id {} has no token", token.name, token.id));
    spec_.bos = spec_.ends.before.id;
    for (const char* name : {"<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>", "[BOS]"})
      if (spec_.bos < 0) spec_.bos = special(name);
  }

  const std::string& origin_;
  BpeSpec spec_;
  std::unordered_map<std::string, int32_t> ids_;  // the model's vocabulary, by token
  bool byte_level_ = false;
};

}  // namespace

BpeSpec parse_bpe(std::string_view text, const std::string& origin) { return Reader(origin).read(text); }

std::pair<std::string, std::string> vocab_and_merges(const BpeSpec& spec) {
  std::string vocab, merges = "#version: 0.2\n";
  for (size_t id = 0; id < spec.names.size(); ++id)
    vocab += (id == 0 ? "{" : ", ") + json(spec.names[id]).dump() + ": " + std::to_string(id);
  for (const BpeSpec::Merge& merge : spec.merges)
    merges += spec.names[static_cast<size_t>(merge.left)] + " " + spec.names[static_cast<size_t>(merge.right)] + "\n";
  return {vocab + "}\n", merges};
}

}  // namespace trainer::data
