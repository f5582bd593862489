#include "huggingface/tokenizer_files.h"

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "data/sentencepiece_json.h"

namespace trainer::huggingface {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

std::vector<NamedFile> tokenizer_files(const data::Tokenizer& tokenizer, int64_t seq_len) {
  std::vector<NamedFile> files{{"tokenizer.model", tokenizer.bytes()}};
  const std::optional<std::string> json = data::sentencepiece_to_json(tokenizer.bytes());
  if (!json) {
    log::warning(
        "the tokenizer is written as tokenizer.model alone: only SentencePiece's BPE without normalisation has a form "
        "that AutoTokenizer loads");
    return files;
  }
  files.push_back({"tokenizer.json", *json});
  const std::string end = tokenizer.name_of(tokenizer.eos());
  const ordered_json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                            {"bos_token", end},
                            {"eos_token", end},
                            {"model_max_length", seq_len},
                            {"clean_up_tokenization_spaces", false}};
  files.push_back({"tokenizer_config.json", config.dump(2) + "\n"});
  return files;
}

std::optional<data::Tokenizer> find_tokenizer(const fs::path& folder) {
  std::error_code none;
  if (fs::exists(folder / "tokenizer.model", none)) return data::Tokenizer::load((folder / "tokenizer.model").string());
  for (const char* other : {"tokenizer.json", "vocab.json"})
    if (fs::exists(folder / other, none))
      log::warning("{}: not read, the imported checkpoint has no tokenizer; only SentencePiece's tokenizer.model is",
                   (folder / other).string());
  return std::nullopt;
}

}  // namespace trainer::huggingface
