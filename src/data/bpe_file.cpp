#include "data/bpe_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "data/split_pattern.h"
#include "data/utf8.h"

namespace trainer::data {
namespace {

using nlohmann::json;

constexpr size_t kMostTokens = size_t{1} << 24;

/// The members of a tokenizer.json, with messages that name them.
class Reader {
 public:
  explicit Reader(const std::string& origin) : origin_(origin) {}

  BpeSpec read(std::string_view text) {
    const auto too_deep = [&](int depth, json::parse_event_t, json&) {
      constexpr int kDeepest = 32;
      if (depth > kDeepest) refuse("file", "values are nested too deeply");
      return true;
    };
    const json root = json::parse(text, too_deep, /*allow_exceptions=*/false);
    if (!root.is_object() || !root.contains("model") || !root["model"].is_object())
      refuse("model", "missing: not a tokenizer.json");
    const json& model = root["model"];
    check_model(model);
    if (const json& normalizer = member(root, "normalizer"); !normalizer.is_null())
      refuse("normalizer", format("{} is not supported: this program never changes text", type_of(normalizer)));
    read_pre_tokenizer(member(root, "pre_tokenizer"));
    read_vocabulary(model, member(root, "added_tokens"));
    read_merges(model);
    find_eos();
    return std::move(spec_);
  }

 private:
  [[noreturn]] void refuse(const std::string& place, const std::string& reason) const {
    throw Error(Code::data, format("{}: {}: {}", origin_, place, reason));
  }
  static const json& member(const json& object, const char* key) {
    static const json kNone;
    const auto found = object.is_object() ? object.find(key) : object.end();
    return object.is_object() && found != object.end() ? *found : kNone;
  }
  static std::string dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }
  static std::string type_of(const json& value) { return dump(member(value, "type")); }
  bool flag(const json& object, const char* key, bool otherwise) const {
    const json& value = member(object, key);
    if (!value.is_null() && !value.is_boolean()) refuse(key, format("{}, expected true or false", dump(value)));
    return value.is_null() ? otherwise : value.get<bool>();
  }

  void check_model(const json& model) {
    if (const json& type = member(model, "type"); !type.is_null() && type != "BPE")
      refuse("model.type", format("{} is not supported, only byte-level BPE and SentencePiece models are", dump(type)));
    if (flag(model, "byte_fallback", false))
      refuse("model.byte_fallback", "true is not supported: give the tokenizer.model that this was made from");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const json& value = member(model, key); !value.is_null() && value != "")
        refuse(std::string("model.") + key, format("{} is not supported", dump(value)));
    spec_.ignore_merges = flag(model, "ignore_merges", false);
  }

  void read_pre_tokenizer(const json& step) {
    const json& type = member(step, "type");
    if (type == "Sequence") {
      const json& steps = member(step, "pretokenizers");
      if (!steps.is_array() || steps.empty()) refuse("pre_tokenizer", "a sequence without members");
      for (const json& each : steps) read_step(each);
    } else {
      read_step(step);
    }
    if (!byte_level_)
      refuse("pre_tokenizer",
             format("{} is not supported: expected ByteLevel, alone or last of a sequence", dump(type)));
  }
  void read_step(const json& step) {
    const json& type = member(step, "type");
    if (byte_level_) refuse("pre_tokenizer", format("{} after ByteLevel is not supported", dump(type)));
    if (type == "ByteLevel") {
      if (flag(step, "add_prefix_space", true)) refuse("pre_tokenizer.add_prefix_space", "true is not supported");
      if (flag(step, "use_regex", true)) spec_.patterns.emplace_back(kGpt2Pattern);
      byte_level_ = true;
    } else if (type == "Digits") {
      spec_.patterns.emplace_back(flag(step, "individual_digits", false) ? "\\p{N}" : "\\p{N}+");
    } else if (type == "Split") {
      const json& pattern = member(member(step, "pattern"), "Regex");
      if (!pattern.is_string() || member(step, "behavior") != "Isolated" || flag(step, "invert", false))
        refuse("pre_tokenizer", format("{} is not supported: Split takes a regular expression and isolates what it "
                                       "matches",
                                       dump(step)));
      spec_.patterns.push_back(pattern.get<std::string>());
    } else {
      refuse("pre_tokenizer", format("{} is not supported", dump(type)));
    }
  }

  size_t id_in(const json& value, const std::string& place) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= kMostTokens)
      refuse(place, format("{} is no id of a token", dump(value)));
    return value.get<size_t>();
  }

  void read_vocabulary(const json& model, const json& added) {
    const json& vocab = member(model, "vocab");
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
      if (id >= most) refuse(name, format("id {} leaves ids without a token", id));
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
    for (const json* token : extra) {
      const json& content = member(*token, "content");
      if (!content.is_string() || content.get_ref<const std::string&>().empty())
        refuse("added_tokens", format("{} has no content", dump(*token)));
      const std::string name = content.get<std::string>();
      const size_t id = id_in(member(*token, "id"), "added_tokens: " + name);
      if (id < most && known[id] && spec_.names[id] != name)
        refuse("added_tokens: " + name, format("id {} is also that of {}", id, spec_.names[id]));
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
    if (flag(token, "special", false)) {
      specials_.push_back(id);
      return;
    }
    for (const char* key : {"lstrip", "rstrip", "single_word"})
      if (flag(token, key, false)) refuse("added_tokens: " + name, format("{} is not supported", key));
    spec_.pieces[static_cast<size_t>(id)] = name;
    spec_.literals.push_back(id);
  }
  /// Returns the bytes that a name of the vocabulary stands for.
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
    const json& merges = member(model, "merges");
    if (!merges.is_array()) refuse("model.merges", "missing");
    const auto id_of = [&](const std::string& name, size_t index) {
      const auto found = ids_.find(name);
      if (found == ids_.end()) refuse(format("model.merges[{}]", index), format("{} is no token", name));
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
          refuse(format("model.merges[{}]", i), format("{} is no pair of tokens", dump(merge)));
        left = text.substr(0, space);
        right = text.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else {
        refuse(format("model.merges[{}]", i), format("{} is no pair of tokens", dump(merge)));
      }
      spec_.merges.push_back({id_of(left, i), id_of(right, i), id_of(left + right, i)});
    }
  }

  /// Documents end with the special token whose name says so; the only one, where there is only one.
  void find_eos() {
    for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]"})
      for (const int32_t id : specials_)
        if (spec_.eos < 0 && spec_.names[static_cast<size_t>(id)] == name) spec_.eos = id;
    if (spec_.eos < 0 && specials_.size() == 1) spec_.eos = specials_.front();
    if (spec_.eos < 0)
      refuse("added_tokens", "no special token that ends a text, such as <|endoftext|>, which documents end with");
  }

  const std::string& origin_;
  BpeSpec spec_;
  std::unordered_map<std::string, int32_t> ids_;  // of the model's vocabulary, by name
  std::vector<int32_t> specials_;
  bool byte_level_ = false;
};

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line(text.substr(begin, end - begin));
    if (line.ends_with('\r')) line.pop_back();
    lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

constexpr const char* kEndOfText = "<|endoftext|>";

struct NamedToken {
  std::string name;
  size_t id;
};

/// Puts a tokenizer.json together. `vocab` is in the order of ids; names are as GPT-2 writes them.
std::string assemble(const std::vector<NamedToken>& vocab, const std::vector<std::string>& merges,
                     const std::vector<NamedToken>& special, std::string_view pattern) {
  using nlohmann::ordered_json;
  const auto byte_level = [](bool regex) {
    return ordered_json{
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", regex}};
  };
  ordered_json steps = byte_level(true);
  if (pattern != kGpt2Pattern)
    steps = {{"type", "Sequence"},
             {"pretokenizers",
              {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}},
               byte_level(false)}}};
  ordered_json added = ordered_json::array();
  for (const NamedToken& token : special)
    added.push_back({{"id", token.id},
                     {"content", token.name},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  const ordered_json root{{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", added},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", steps},
                          {"post_processor", nullptr},
                          {"decoder", byte_level(true)},
                          {"model",
                           {{"type", "BPE"},
                            {"dropout", nullptr},
                            {"unk_token", nullptr},
                            {"continuing_subword_prefix", ""},
                            {"end_of_word_suffix", ""},
                            {"fuse_unk", false},
                            {"byte_fallback", false},
                            {"ignore_merges", false},
                            {"merges", merges}}}};
  std::string text = root.dump();
  std::string tokens;
  for (const NamedToken& token : vocab)
    tokens += (tokens.empty() ? "{" : ",") + json(token.name).dump() + ":" + std::to_string(token.id);
  text.insert(text.size() - 2, ",\"vocab\":" + tokens + "}");
  return text + "\n";
}

/// The bytes in the order of their ids in GPT-2's vocabulary: those that print come first.
std::vector<size_t> bytes_in_order() {
  std::vector<size_t> order;
  const auto prints = [](size_t byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  };
  for (size_t byte = 0; byte < 256; ++byte)
    if (prints(byte)) order.push_back(byte);
  for (size_t byte = 0; byte < 256; ++byte)
    if (!prints(byte)) order.push_back(byte);
  return order;
}

std::vector<NamedToken> read_vocab_json(std::string_view text, const std::string& origin) {
  const json vocab = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!vocab.is_object() || vocab.empty())
    throw Error(Code::data, format("{}: not a JSON object of tokens and their ids", origin));
  std::vector<NamedToken> tokens;
  for (const auto& [name, id] : vocab.items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMostTokens)
      throw Error(Code::data, format("{}: {}: the id is no whole number", origin, name));
    tokens.push_back({name, id.get<size_t>()});
  }
  std::ranges::sort(tokens, {}, &NamedToken::id);
  return tokens;
}

std::optional<std::string> from_base64(std::string_view text) {
  std::string bytes;
  uint32_t bits = 0;
  int held = 0;
  while (text.ends_with('=')) text.remove_suffix(1);
  for (const char c : text) {
    const std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t digit = digits.find(c);
    if (digit == digits.npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if ((held += 6) < 8) continue;
    held -= 8;
    bytes += static_cast<char>(bits >> held & 255);
  }
  return bytes;
}

struct RankedToken {
  std::string bytes;
  size_t rank;
};
std::optional<RankedToken> read_rank(std::string_view line) {
  constexpr size_t kMostDigits = 8;
  const size_t space = line.find(' ');
  if (space == line.npos || space == 0) return std::nullopt;
  const std::optional<std::string> bytes = from_base64(line.substr(0, space));
  const std::string_view number = line.substr(space + 1);
  if (!bytes || bytes->empty() || number.empty() || number.size() > kMostDigits ||
      number.find_first_not_of("0123456789") != number.npos)
    return std::nullopt;
  return RankedToken{*bytes, std::stoull(std::string(number))};
}

std::string name_of(std::string_view bytes) {
  std::string name;
  for (const char byte : bytes) name += byte_characters()[static_cast<uint8_t>(byte)];
  return name;
}

/// Returns the two tokens that were joined into this one: what is left of its bytes when only earlier ranks are joined.
std::vector<std::string> halves_of(const RankedToken& token, const std::unordered_map<std::string, size_t>& ranks) {
  std::vector<std::string> parts;
  for (const char byte : token.bytes) parts.emplace_back(1, byte);
  while (parts.size() > 2) {
    size_t best = token.rank, place = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find(parts[i] + parts[i + 1]);
      if (found == ranks.end() || found->second >= best) continue;
      best = found->second;
      place = i;
    }
    if (best == token.rank) break;
    parts[place] += parts[place + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(place) + 1);
  }
  return parts;
}

}  // namespace

const std::array<std::string, 256>& byte_characters() {
  static const std::array<std::string, 256> kCharacters = [] {
    std::array<std::string, 256> characters;
    const std::vector<size_t> order = bytes_in_order();
    constexpr size_t kPrinting = 188;
    for (size_t i = 0; i < order.size(); ++i) {
      const size_t code = i < kPrinting ? order[i] : 256 + (i - kPrinting);
      std::string& text = characters[order[i]];
      if (code < 0x80) {
        text += static_cast<char>(code);
      } else {
        text += static_cast<char>(0xC0 | code >> 6);
        text += static_cast<char>(0x80 | (code & 63));
      }
    }
    return characters;
  }();
  return kCharacters;
}

BpeSpec parse_bpe(std::string_view text, const std::string& origin) { return Reader(origin).read(text); }

std::string json_of_gpt2(std::optional<std::string_view> vocab_json, std::string_view merges_text,
                         const std::string& vocab_origin, const std::string& merges_origin) {
  std::vector<std::string> merges;
  const std::vector<std::string> lines = lines_of(merges_text);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty() || (i == 0 && lines[i].starts_with("#version"))) continue;
    const size_t space = lines[i].find(' ');
    if (space == std::string::npos || space == 0 || space + 1 >= lines[i].size() ||
        lines[i].find(' ', space + 1) != std::string::npos || utf8_first_invalid(lines[i]) < lines[i].size())
      throw Error(Code::data,
                  format("{}: line {}: expected two tokens with a space between them", merges_origin, i + 1));
    merges.push_back(lines[i]);
  }
  std::vector<NamedToken> vocab;
  if (vocab_json) {
    vocab = read_vocab_json(*vocab_json, vocab_origin);
  } else {
    for (const size_t byte : bytes_in_order()) vocab.push_back({byte_characters()[byte], vocab.size()});
    for (std::string merge : merges) {
      merge.erase(merge.find(' '), 1);
      vocab.push_back({std::move(merge), vocab.size()});
    }
    vocab.push_back({kEndOfText, vocab.size()});
  }
  std::vector<NamedToken> special;
  for (const NamedToken& token : vocab)
    if (token.name == kEndOfText) special.push_back(token);
  if (special.empty()) throw Error(Code::data, format("{}: has no token {}", vocab_origin, kEndOfText));
  return assemble(vocab, merges, special, kGpt2Pattern);
}

bool looks_like_ranks(std::string_view bytes) {
  return read_rank(bytes.substr(0, std::min(bytes.find('\n'), bytes.size()))).has_value();
}

std::string json_of_ranks(std::string_view text, const std::string& origin) {
  std::vector<RankedToken> tokens;
  std::unordered_map<std::string, size_t> ranks;
  const std::vector<std::string> lines = lines_of(text);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    std::optional<RankedToken> token = read_rank(lines[i]);
    if (!token) throw Error(Code::data, format("{}: line {}: expected a token in base64 and its rank", origin, i + 1));
    if (!ranks.emplace(token->bytes, token->rank).second)
      throw Error(Code::data, format("{}: line {}: the token occurs twice", origin, i + 1));
    tokens.push_back(std::move(*token));
  }
  struct Known {
    size_t ranks;
    std::string_view pattern;
    std::vector<NamedToken> special;
  };
  const Known known[] = {{50256, kGpt2Pattern, {{kEndOfText, 50256}}},
                         {50280, kGpt2Pattern, {{kEndOfText, 50256}}},
                         {100256,
                          kCl100kPattern,
                          {{"<|reserved_100256|>", 100256},
                           {kEndOfText, 100257},
                           {"<|fim_prefix|>", 100258},
                           {"<|fim_middle|>", 100259},
                           {"<|fim_suffix|>", 100260},
                           {"<|endofprompt|>", 100276}}}};
  const auto* found = std::ranges::find(known, tokens.size(), &Known::ranks);
  if (found == std::end(known))
    throw Error(Code::data, format("{}: {} ranks: not a vocabulary whose pattern is known (those of r50k, p50k and "
                                   "cl100k have 50256, 50280 and 100256); give its tokenizer.json",
                                   origin, tokens.size()));
  std::vector<NamedToken> special = found->special;
  if (found->ranks == 100256)  // ids in between stand for nothing, but a vocabulary has no holes
    for (size_t id = 100261; id < 100276; ++id) special.push_back({format("<|reserved_{}|>", id), id});
  std::ranges::sort(special, {}, &NamedToken::id);
  std::ranges::sort(tokens, {}, &RankedToken::rank);
  std::vector<NamedToken> vocab;
  std::vector<std::string> merges;
  for (const RankedToken& token : tokens) {
    vocab.push_back({name_of(token.bytes), token.rank});
    if (token.bytes.size() == 1) continue;
    const std::vector<std::string> halves = halves_of(token, ranks);
    if (halves.size() == 2) merges.push_back(name_of(halves[0]) + " " + name_of(halves[1]));
  }
  vocab.insert(vocab.end(), special.begin(), special.end());
  std::ranges::sort(vocab, {}, &NamedToken::id);
  return assemble(vocab, merges, special, found->pattern);
}

std::pair<std::string, std::string> vocab_and_merges(const BpeSpec& spec) {
  std::string vocab, merges = "#version: 0.2\n";
  for (size_t id = 0; id < spec.names.size(); ++id)
    vocab += (id == 0 ? "{" : ", ") + json(spec.names[id]).dump() + ": " + std::to_string(id);
  for (const BpeSpec::Merge& merge : spec.merges)
    merges += spec.names[static_cast<size_t>(merge.left)] + " " + spec.names[static_cast<size_t>(merge.right)] + "\n";
  return {vocab + "}\n", merges};
}

}  // namespace trainer::data
