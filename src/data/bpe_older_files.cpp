// Converts older files of byte-level BPE to a tokenizer.json.
#include "data/bpe_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "data/special_tokens.h"
#include "data/split_pattern.h"

namespace trainer::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kMostIds = size_t{1} << 24;

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

/// Assembles a tokenizer.json. `vocab` is in the order of ids; names are spelled as in GPT-2's files.
std::string assemble(const std::vector<NamedToken>& vocab, const std::vector<std::string>& merges,
                     const std::vector<AddedToken>& added_tokens, std::string_view pattern) {
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
  for (const AddedToken& token : added_tokens) {
    ordered_json entry{{"id", token.id}};
    entry.update(added_token_json<ordered_json>(token));
    added.push_back(std::move(entry));
  }
  const ordered_json root{{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", added},
                          {"normalizer", pattern == kQwen2Pattern ? ordered_json{{"type", "NFC"}} : ordered_json()},
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

/// Returns the bytes in the order of their ids in GPT-2's vocabulary: printable ones come first.
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
  const json vocab = parse_json(text);
  if (!vocab.is_object() || vocab.empty())
    throw Error(Code::data, format("{}: not a JSON object of tokens and their ids", origin));
  std::vector<NamedToken> tokens;
  for (const auto& [name, id] : vocab.items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMostIds)
      throw Error(Code::data, format("{}: {}: the id is not an integer", origin, name));
    tokens.push_back({name, id.get<size_t>()});
  }
  std::ranges::sort(tokens, {}, &NamedToken::id);
  return tokens;
}

AddedToken special_token(const NamedToken& token) {
  return {.id = static_cast<int32_t>(token.id), .content = token.name, .special = true};
}

/// Appends the special tokens of a vocabulary: those with the given names, and GPT-2's. If there are none, those with
/// another usual name, unless merges produce it from text.
void add_special(const std::vector<NamedToken>& vocab, const std::vector<std::string>& merges,
                 const std::vector<std::string>& names, std::vector<AddedToken>& added) {
  const auto among = [&](const auto& list) {
    std::vector<NamedToken> found;
    for (const NamedToken& token : vocab)
      if (std::ranges::find(list, token.name) != std::end(list)) found.push_back(token);
    return found;
  };
  std::vector<std::string> known = names;
  known.emplace_back(kEndOfText);
  std::vector<NamedToken> special = among(known);
  if (special.empty() && std::ranges::none_of(added, &AddedToken::special)) {
    special = among(std::array<std::string_view, 5>{"</s>", "<s>", "<pad>", "<unk>", "<mask>"});
    std::erase_if(special, [&](const NamedToken& token) {
      return std::ranges::any_of(merges,
                                 [&](std::string merge) { return merge.erase(merge.find(' '), 1) == token.name; });
    });
  }
  for (const NamedToken& token : special)
    if (std::ranges::find(added, token.name, &AddedToken::content) == added.end())
      added.push_back(special_token(token));
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

/// Returns the two tokens that were merged into this one, by merging its bytes using lower ranks only.
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

std::string json_of_gpt2(std::optional<std::string_view> vocab_json, std::string_view merges_text,
                         const std::string& vocab_origin, const std::string& merges_origin, const fs::path& folder) {
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
  std::vector<AddedToken> added;
  std::string_view pattern = kGpt2Pattern;
  if (!folder.empty()) {
    const std::string name = tokenizer_class(folder);
    if (name == "Qwen2Tokenizer")
      pattern = kQwen2Pattern;
    else if (!name.empty() && name != "GPT2Tokenizer")
      throw Error(Code::data, format("{}: tokenizer_class: {} is not supported without a tokenizer.json; save one with "
                                     "AutoTokenizer.from_pretrained(...).save_pretrained(...) of transformers",
                                     (folder / "tokenizer_config.json").string(), name));
    std::vector<std::string> names;
    for (const NamedToken& token : vocab) names.push_back(token.name);
    added = find_added_tokens(names, folder);
  }
  add_special(vocab, merges, folder.empty() ? std::vector<std::string>() : special_names(folder), added);
  if (std::ranges::none_of(added, &AddedToken::special))
    throw Error(Code::data,
                format("{}: no end-of-text token such as {}; name it as eos_token in tokenizer_config.json, or use the "
                       "tokenizer.json of the model",
                       vocab_origin, kEndOfText));
  return assemble(vocab, merges, added, pattern);
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
  if (found->ranks == 100256)  // unused ids in between, since a vocabulary must not have gaps
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
  std::vector<AddedToken> added;
  for (const NamedToken& token : special) added.push_back(special_token(token));
  return assemble(vocab, merges, added, found->pattern);
}

}  // namespace trainer::data
