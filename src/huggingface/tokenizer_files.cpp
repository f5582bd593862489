#include "huggingface/tokenizer_files.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "data/added_tokens.h"
#include "data/bpe_file.h"
#include "data/sentencepiece_json.h"
#include "data/split_pattern.h"

namespace trainer::huggingface {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {
constexpr const char* kJsonFile = "tokenizer.json";
}

std::vector<NamedFile> tokenizer_files(const data::Tokenizer& tokenizer, const data::SpecialTokens& special,
                                       int64_t longest) {
  const bool adds_bos = tokenizer.bos() >= 0;
  const std::string begin = adds_bos ? tokenizer.name_of(tokenizer.bos()) : "";
  std::vector<NamedFile> files;
  ordered_json ids, decoder;  // added tokens; null: there are none
  if (tokenizer.file_name() == kJsonFile) {
    files.push_back({kJsonFile, tokenizer.bytes()});
    auto [vocab, merges] = data::vocab_and_merges(data::parse_bpe(tokenizer.bytes(), kJsonFile));
    files.push_back({"vocab.json", std::move(vocab)});
    files.push_back({"merges.txt", std::move(merges)});
  } else {
    files.push_back({tokenizer.file_name(), std::string(data::without_added_tokens(tokenizer.bytes()))});
    for (const data::AddedToken& token : data::read_added_tokens(tokenizer.bytes(), "the tokenizer").tokens) {
      ids[token.content] = token.id;
      decoder[std::to_string(token.id)] = data::added_token_json<ordered_json>(token);
    }
    if (!ids.is_null()) files.push_back({"added_tokens.json", ids.dump(2) + "\n"});
    if (std::optional<std::string> json = data::sentencepiece_to_json(tokenizer.bytes(), begin)) {
      files.push_back({kJsonFile, std::move(*json)});
    } else {
      log::warning(
          "the tokenizer is written as tokenizer.model only: of SentencePiece models, tokenizer.json can represent "
          "only "
          "BPE without normalisation");
      if (ids.is_null()) return files;
    }
  }
  const auto name = [&](std::optional<int32_t> id) {
    return id && *id < tokenizer.vocab_size() ? ordered_json(tokenizer.name_of(*id)) : ordered_json();
  };
  ordered_json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                      {"bos_token", name(special.bos)},
                      {"eos_token", name(special.eos.empty() ? tokenizer.eos() : special.eos.front())},
                      {"model_max_length", longest},
                      {"clean_up_tokenization_spaces", false}};
  if (special.pad) config["pad_token"] = name(special.pad);
  if (special.unk) config["unk_token"] = name(special.unk);
  config["add_bos_token"] = adds_bos;
  if (special.add_eos) config["add_eos_token"] = true;
  if (!decoder.is_null()) config["added_tokens_decoder"] = std::move(decoder);
  files.push_back({"tokenizer_config.json", config.dump(2) + "\n"});
  return files;
}

bool splits_as_qwen2(const data::Tokenizer& tokenizer) {
  if (tokenizer.file_name() != kJsonFile) return false;
  const data::BpeSpec spec = data::parse_bpe(tokenizer.bytes(), kJsonFile);
  return spec.nfc &&
         std::ranges::equal(spec.splits, std::array{data::kQwen2Pattern}, {}, &data::BpeSpec::Split::pattern);
}

std::optional<data::Tokenizer> find_tokenizer(const fs::path& folder) {
  std::error_code none;
  for (const char* name : {"tokenizer.model", kJsonFile, "merges.txt"})
    if (fs::exists(folder / name, none)) return data::Tokenizer::load((folder / name).string());
  return std::nullopt;
}

}  // namespace trainer::huggingface
