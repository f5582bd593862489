#include "huggingface/tokenizer_files.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/log.h"
#include "data/added_tokens.h"
#include "data/bpe_file.h"
#include "data/chat.h"
#include "data/post_processor.h"
#include "data/sentencepiece_json.h"
#include "data/split_pattern.h"

namespace trainer::huggingface {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {
constexpr const char *kJsonFile = "tokenizer.json", *kConfigFile = "tokenizer_config.json";

data::NamedId named(const data::Tokenizer& tokenizer, int32_t id) {
  return id < 0 ? data::NamedId() : data::NamedId{tokenizer.name_of(id), id};
}

/// Returns the tokenizer.json of byte-level BPE, whose post-processor adds the tokens that the run adds to texts.
std::string as_in_run(const data::Tokenizer& tokenizer, const data::BpeSpec& spec, const data::SpecialTokens& special) {
  const bool same_bos = tokenizer.bos() == spec.ends.before.id && spec.ends.obstacle.empty();
  if (same_bos && (spec.ends.after.id >= 0 || !special.add_eos)) return tokenizer.bytes();
  const data::NamedId before = named(tokenizer, tokenizer.bos());
  const data::NamedId after =
      spec.ends.after.id >= 0 || !special.add_eos ? spec.ends.after : named(tokenizer, tokenizer.eos());
  return data::with_ends(tokenizer.bytes(), before, after);
}

}  // namespace

std::vector<NamedFile> tokenizer_files(const data::Tokenizer& tokenizer, const data::SpecialTokens& special,
                                       int64_t longest) {
  const bool adds_bos = tokenizer.bos() >= 0;
  std::vector<NamedFile> files;
  ordered_json ids, decoder;  // added tokens; null: there are none
  if (tokenizer.file_name() == kJsonFile) {
    const data::BpeSpec spec = data::parse_bpe(tokenizer.bytes(), kJsonFile);
    auto [vocab, merges] = data::vocab_and_merges(spec);
    files.push_back({kJsonFile, as_in_run(tokenizer, spec, special)});
    files.push_back({"vocab.json", std::move(vocab)});
    files.push_back({"merges.txt", std::move(merges)});
  } else {
    files.push_back({tokenizer.file_name(), std::string(data::without_added_tokens(tokenizer.bytes()))});
    const data::AddedTokens added = data::read_added_tokens(tokenizer.bytes(), "the tokenizer");
    for (const std::vector<data::AddedToken>* list : {&added.pieces, &added.tokens})
      for (const data::AddedToken& token : *list) {
        if (list == &added.tokens) ids[token.content] = token.id;
        decoder[std::to_string(token.id)] = data::added_token_json<ordered_json>(token);
      }
    if (!ids.is_null()) files.push_back({"added_tokens.json", ids.dump(2) + "\n"});
    if (auto json = data::sentencepiece_to_json(tokenizer.bytes(), named(tokenizer, tokenizer.bos()),
                                                named(tokenizer, special.add_eos ? tokenizer.eos() : -1)))
      files.push_back({kJsonFile, std::move(*json)});
  }
  const auto name = [&](std::optional<int32_t> id) {
    return id && *id < tokenizer.vocab_size() ? ordered_json(tokenizer.name_of(*id)) : ordered_json();
  };
  ordered_json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                      {"bos_token", name(special.bos)},
                      {"eos_token", name(special.eos.empty() ? tokenizer.eos() : special.eos.front())},
                      {"unk_token", name(special.unk)},
                      {"pad_token", name(special.pad)},
                      {"model_max_length", longest},
                      {"clean_up_tokenization_spaces", false}};
  if (const auto found = special.fields.find(kConfigFile); found != special.fields.end()) {
    const auto kept = parse_json<ordered_json>(found->second);
    for (const char* field : {"bos_token", "eos_token", "unk_token", "pad_token"}) config[field] = nullptr;
    config.update(kept);
    // Python's readers write 10³⁰ for no limit.
    if (const ordered_json& most = config["model_max_length"]; !most.is_number() || most > longest)
      config["model_max_length"] = longest;
  }
  const auto text_of = [&](const char* field) {  // a name, or an object that describes the token
    const ordered_json& token = config[field];
    const ordered_json& text = token.is_object() && token.contains("content") ? token["content"] : token;
    return text.is_string() ? text.get<std::string>() : "";
  };
  if (!special.chat_format.empty())
    config["chat_template"] = data::exported_template(special, tokenizer, text_of("bos_token"), text_of("eos_token"));
  config["add_bos_token"] = adds_bos;
  if (special.add_eos) config["add_eos_token"] = true;
  if (!decoder.is_null()) config["added_tokens_decoder"] = std::move(decoder);
  files.push_back({kConfigFile, config.dump(2) + "\n"});
  return files;
}

bool splits_as_qwen2(const data::Tokenizer& tokenizer) {
  if (tokenizer.file_name() != kJsonFile) return false;
  const data::BpeSpec spec = data::parse_bpe(tokenizer.bytes(), kJsonFile);
  return spec.nfc &&
         std::ranges::equal(spec.splits, std::array{data::kQwen2Pattern}, {}, &data::BpeSpec::Split::pattern);
}

std::optional<data::Tokenizer> find_tokenizer(const fs::path& folder) {
  if (!data::has_tokenizer(folder)) return std::nullopt;
  return data::Tokenizer::load(folder.string());
}

}  // namespace trainer::huggingface
