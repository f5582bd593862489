#include "data/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/utf8.h"
#include "data/added_tokens.h"
#include "data/bpe_file.h"
#include "data/files.h"
#include "data/model_traits.h"
#include "data/post_processor.h"
#include "data/python_json.h"
#include "data/tokenizer_model.h"

namespace trainer::data {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char *kJsonFile = "tokenizer.json", *kModelFile = "tokenizer.model",
                     *kConfigFile = "tokenizer_config.json";

/// A SentencePiece model begins with the tag of its first field, which is never a brace.
bool is_json(std::string_view bytes) { return bytes.starts_with('{'); }

/// Returns the tokenizer's file in a folder; empty: there is none.
fs::path find_file(const fs::path& folder) {
  std::error_code none;
  for (const char* name : {kModelFile, kJsonFile, "merges.txt", "vocab.bpe"}) {
    if (!fs::exists(folder / name, none)) continue;
    // Some models have a file of ranks under the name of a SentencePiece model, which lacks their special tokens.
    const bool has_better = name == kModelFile && fs::exists(folder / kJsonFile, none);
    if (!has_better || !looks_like_ranks(read_file(folder / name))) return folder / name;
  }
  std::vector<fs::path> ranks;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none))
    if (entry.path().extension() == ".tiktoken") ranks.push_back(entry.path());
  if (ranks.size() > 1)
    throw Error(Code::data, fmt::format("{}: several .tiktoken files; expected one", folder.string()));
  return ranks.empty() ? fs::path() : ranks.front();
}

fs::path file_in(const fs::path& folder) {
  const fs::path file = find_file(folder);
  if (file.empty())
    throw Error(Code::data, fmt::format("{}: no tokenizer found; expected tokenizer.model, tokenizer.json, merges.txt, "
                                        "vocab.bpe or one .tiktoken file",
                                        folder.string()));
  return file;
}

/// True if the bytes are lines of merges such as "Ġ t".
bool looks_like_merges(std::string_view bytes) {
  const std::string_view line = bytes.substr(0, std::min(bytes.find('\n'), bytes.size()));
  const size_t space = line.find(' ');
  return line.starts_with("#version") ||
         (space != line.npos && space > 0 && space + 1 < line.size() && line.find(' ', space + 1) == line.npos &&
          utf8_first_invalid(line) == line.size() &&
          std::ranges::none_of(line, [](unsigned char c) { return c < 0x20 && c != '\r'; }));
}

/// Returns the serialized form of a file's contents.
std::string serialized_form(const fs::path& file, std::string bytes) {
  const fs::path vocab = file.parent_path() / "vocab.json", merges = file.parent_path() / "merges.txt";
  std::error_code none;
  if (const size_t first = bytes.find_first_not_of(" \t\r\n"); first != bytes.npos && bytes[first] == '{') {
    bytes.erase(0, first);
    if (file.filename() == vocab.filename() && fs::exists(merges, none))
      return json_of_gpt2(bytes, read_file(merges), file.string(), merges.string(), file.parent_path());
    return bytes;
  }
  if (looks_like_ranks(bytes)) return json_of_ranks(bytes, file.string());
  if (!looks_like_merges(bytes)) return bytes;
  if (!fs::exists(vocab, none)) return json_of_gpt2(std::nullopt, bytes, file.string(), file.string());
  return json_of_gpt2(read_file(vocab), bytes, vocab.string(), file.string(), file.parent_path());
}

/// Reads the tokens that other files add to a tokenizer.model. If its pieces are not those of the tokenizer.json next
/// to it, returns that file's contents, and its path in `file`.
std::string with_its_files(fs::path& file, std::string bytes) {
  const auto traits = file.filename() == kTokenizerFiles[0] ? read_traits(bytes) : std::nullopt;
  if (is_json(bytes) || !traits || !traits->extension.empty()) return bytes;
  std::string difference;
  if (const auto prefix = prefix_setting(file.parent_path()); prefix && *prefix != traits->dummy_prefix)
    bytes += *prefix ? kDummyPrefix : kNoDummyPrefix;
  const AddedTokens added = find_added_tokens(bytes, file.parent_path(), difference);
  if (difference.empty()) return with_added_tokens(std::move(bytes), added);
  const fs::path model = std::exchange(file, file.parent_path() / kTokenizerFiles[1]);
  bytes = serialized_form(file, read_file(file));
  try {
    parse_bpe(bytes, file.string());
  } catch (const Error& error) {
    throw Error(Code::data, fmt::format("{}: it gives other tokens than {}: {}; remove the file that does not belong "
                                        "to the model (tokenizer.json cannot be read instead: {})",
                                        file.string(), model.string(), difference, error.what()));
  }
  log::info("{}: read instead of tokenizer.model, which gives other tokens: {}", file.string(), difference);
  return bytes;
}

}  // namespace

bool has_tokenizer(const fs::path& folder) { return !find_file(folder).empty(); }

std::string tokenizer_file_name(std::string_view serialized) { return kTokenizerFiles[is_json(serialized) ? 1 : 0]; }

Tokenizer Tokenizer::load(const std::string& path) {
  std::error_code none;
  fs::path file = fs::is_directory(path, none) ? file_in(path) : fs::path(path);
  std::string bytes = with_its_files(file, serialized_form(file, read_file(file)));
  Tokenizer tokenizer = open(std::move(bytes), file.string());
  tokenizer.read_settings(file);
  tokenizer.require_eos(file.string());
  return tokenizer;
}

std::optional<int32_t> Tokenizer::find(const std::string& name) const {
  for (int32_t id = 0; id < vocab_size(); ++id)
    if (name_of(id) == name) return id;
  return std::nullopt;
}

std::vector<int32_t> Tokenizer::special_ids(std::span<const std::string> names) const {
  std::vector<int32_t> ids(names.size(), -1);
  for (int32_t id = 0; id < vocab_size(); ++id) {
    if (!piece(id).empty()) continue;
    const auto found = std::ranges::find(names, name_of(id));
    if (found != names.end()) ids[static_cast<size_t>(found - names.begin())] = id;
  }
  return ids;
}

int32_t Tokenizer::bos_token() const {
  return bos_ >= 0 ? bos_ : known_bos_ >= 0 ? known_bos_ : special_.bos.value_or(-1);
}

void Tokenizer::use_special(SpecialTokens special) {
  special_ = std::move(special);
  eos_ = special_.text_end.value_or(model_->facts().eos);
  if (eos_ < 0 && !special_.eos.empty()) eos_ = special_.eos.front();
  if (eos_ >= vocab_size()) eos_ = -1;
  // One form for one meaning, since ranks compare it.
  special_.text_end = eos_ < 0 || eos_ == model_->facts().eos ? std::nullopt : std::optional(eos_);
}

void Tokenizer::use_eos(int32_t eos) {
  piece(eos);
  SpecialTokens special = special_;
  special.text_end = eos;
  use_special(std::move(special));
}

void Tokenizer::require_eos(const std::string& origin) const {
  if (eos_ < 0)
    throw Error(Code::data, fmt::format("{}: added_tokens: no end-of-text token such as <|endoftext|>; one is required "
                                        "to end documents: name it as eos_token in tokenizer_config.json",
                                        origin));
}

/// Reads the special tokens, and whether texts begin with BOS, from the files next to the tokenizer's.
void Tokenizer::read_settings(const fs::path& file) {
  const fs::path folder = file.parent_path(), config = folder / kConfigFile, sibling = folder / kJsonFile;
  use_special(read_special_tokens(folder, [&](const std::string& name) { return find(name); }));
  choose_eos(folder);
  std::error_code none;
  const json settings = fs::exists(config, none) ? parse_python_json(read_file(config)) : json::object();
  const auto flag = [&](const char* key) { return member_of(settings, key) == true; };
  const bool is_json_file = file.extension() == ".json" && file.filename() != "vocab.json",
             decided = is_json_file || fs::exists(sibling, none);
  if (!is_json_file && decided) {
    ends_ = ends_of(member_of(parse_json(read_file(sibling)), "post_processor"));
    for (const NamedId& token : {ends_.before, ends_.after})
      if (token.id >= vocab_size() || (token.id >= 0 && name_of(token.id) != token.name))
        throw Error(Code::data, fmt::format("{}: post_processor: {} is not the token of id {}", sibling.string(),
                                            token.name, token.id));
    if (ends_.after.id >= 0 && ends_.after.id != eos_)
      throw Error(Code::data, fmt::format("{}: post_processor: ends texts with {}, but documents end with {}; make it "
                                          "eos_token in {}, or remove it",
                                          sibling.string(), ends_.after.name, name_of(eos_), config.string()));
  }
  if (decided) special_.add_eos = ends_.after.id >= 0;
  const auto names = special_.fields.find(kConfigFile);
  if (ends_.before.id >= 0) {
    known_bos_ = ends_.before.id;
  } else if (names != special_.fields.end() && parse_json(names->second).contains("bos_token")) {
    known_bos_ = special_.bos.value_or(-1);
  }
  adds_bos_ = decided ? ends_.before.id >= 0 : flag("add_bos_token");
  if (decided && settings.contains("add_bos_token") && settings["add_bos_token"].is_boolean() &&
      flag("add_bos_token") != adds_bos_ && ends_.obstacle.empty())
    ignored_setting_ = fmt::format(
        "{}: add_bos_token = {} is ignored, as in transformers: the post_processor of {} {}; set data.bos to decide it",
        config.string(), flag("add_bos_token"), kJsonFile,
        adds_bos_ ? "begins texts with " + ends_.before.name : "adds no token before texts");
  if (file_name() == kJsonFile && prefix_setting(folder) == true)
    throw Error(Code::data, fmt::format("{}: add_prefix_space: true is not supported; set it to false, which gives the "
                                        "first word of a text other tokens",
                                        config.string()));
}

/// Makes documents end with the configured EOS, unless it ends turns of a chat.
void Tokenizer::choose_eos(const fs::path& folder) {
  const auto known = [&](int32_t id) { return id >= 0 && id < vocab_size(); };
  const std::vector<ConfiguredEnd> ends = configured_ends(
      folder, special_, [&](const std::string& name) { return find(name); },
      [&](int32_t id) { return known(id) ? name_of(id) : ""; });
  // An id in config.json may be a default of transformers' class, which means nothing in this vocabulary.
  const auto may_end = [&](const ConfiguredEnd& end) { return known(end.id) && (end.named || piece(end.id).empty()); };
  auto chosen = std::ranges::find_if(ends, [&](const auto& end) { return may_end(end) && !end.ends_turns; });
  if (chosen == ends.end() && model_->facts().eos < 0) chosen = std::ranges::find_if(ends, may_end);
  if (chosen != ends.end()) use_eos(chosen->id);
}

Tokenizer Tokenizer::from_bytes(std::string serialized, const std::string& origin, SpecialTokens special) {
  Tokenizer tokenizer = open(std::move(serialized), origin);
  tokenizer.use_special(std::move(special));
  tokenizer.require_eos(origin);
  return tokenizer;
}

Tokenizer Tokenizer::open(std::string serialized, const std::string& origin) {
  Tokenizer tokenizer;
  tokenizer.model_ = is_json(serialized) ? make_byte_bpe(serialized, origin) : make_sentencepiece(serialized, origin);
  tokenizer.hash_ = to_string(checksum_of(serialized));
  tokenizer.known_bos_ = tokenizer.model_->facts().bos;
  tokenizer.ends_ = tokenizer.model_->facts().ends;
  tokenizer.adds_bos_ = tokenizer.ends_.before.id >= 0;
  tokenizer.serialized_ = std::move(serialized);
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

int64_t Tokenizer::vocab_size() const { return static_cast<int64_t>(model_->facts().pieces.size()); }

std::vector<int32_t> Tokenizer::stops() const {
  std::vector<int32_t> stops{eos_};
  for (const int32_t id : special_.eos)
    if (id != eos_) stops.push_back(id);
  return stops;
}

void Tokenizer::use_bos(int32_t bos) {
  if (bos >= 0) piece(bos);
  bos_ = std::max(bos, -1);
}

void Tokenizer::use_bos(config::Bos choice, const std::string& origin) {
  if (choice == config::Bos::on && known_bos_ < 0)
    throw Error(Code::config,
                fmt::format("data.bos: \"on\", but {} has no BOS token; use \"auto\" or \"off\"", origin));
  if (choice == config::Bos::automatic && !ends_.obstacle.empty())
    throw Error(Code::config, fmt::format("data.bos: \"auto\", but the post_processor of {} in {} {}; use \"on\" for "
                                          "one BOS token or \"off\" for none, or change the file",
                                          kJsonFile, origin, ends_.obstacle));
  if (choice == config::Bos::automatic && !ignored_setting_.empty()) log::info("{}", ignored_setting_);
  const bool used = choice == config::Bos::on || (choice == config::Bos::automatic && adds_bos_);
  bos_ = used ? known_bos_ : -1;
}

const std::string& Tokenizer::bytes() const { return serialized_; }
std::string Tokenizer::hash() const { return hash_; }
const std::string& Tokenizer::file_name() const { return model_->facts().file_name; }
CutRule Tokenizer::cuts() const { return model_->facts().cuts; }
SplitCheck Tokenizer::split_check() const {
  return [encoder = std::make_shared<Encoder>(*this)](std::string_view text, size_t at, bool inside_word) {
    return encoder->may_split(text, at, inside_word);
  };
}
bool Tokenizer::dummy_prefix() const { return model_->facts().dummy_prefix; }

std::string_view Tokenizer::piece(int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    throw Error(Code::data, fmt::format("token {} is not in the tokenizer's vocabulary of {}", id, vocab_size()));
  }
  return model_->facts().pieces[static_cast<size_t>(id)];
}

std::string Tokenizer::name_of(int32_t id) const {
  piece(id);
  return model_->name_of(id);
}

Encoder::Encoder(const Tokenizer& tokenizer) : encoder_(tokenizer.model_->encoder()) {}

bool Encoder::may_split(std::string_view text, size_t at, bool inside_word) {
  constexpr size_t kAround = 512;
  const auto tokens = [&](std::string_view part) {
    std::vector<int32_t> ids;
    encoder_->append(part, ids, /*starts_document=*/false);
    return ids;
  };
  size_t end = std::min(at + kAround, text.size());
  end -= utf8_unfinished(text.substr(0, end));
  const std::vector<int32_t> right = tokens(text.substr(at, end - at));
  for (const size_t before : {kAround, kAround - 1, kAround - 3}) {
    size_t begin = at - std::min(before, at);
    while (begin < at && (text[begin] & 0xC0) == 0x80) ++begin;
    std::vector<int32_t> parts = tokens(text.substr(begin, at - begin));
    parts.insert(parts.end(), right.begin(), right.end());
    if (parts != tokens(text.substr(begin, end - begin))) return false;
    if (!inside_word) break;
  }
  return true;
}

void Encoder::append(std::string_view text, std::vector<int32_t>& ids, bool starts_document) {
  encoder_->append(text, ids, starts_document);
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
