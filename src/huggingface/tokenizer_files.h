#pragma once
// Converts the tokenizer of a checkpoint to the files that Hugging Face's AutoTokenizer loads, and back.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace trainer::huggingface {

struct NamedFile {
  std::string name, bytes;
};

/// Returns tokenizer.json, tokenizer_config.json and the tokenizer's own file; for byte-level BPE also vocab.json and
/// merges.txt. `longest` is the longest text that the model accepts, in tokens.
std::vector<NamedFile> tokenizer_files(const data::Tokenizer& tokenizer, const data::SpecialTokens& special,
                                       int64_t longest);

/// True if the tokenizer splits text as that of Qwen 2. AutoTokenizer of transformers 5 does so for every model of type
/// qwen2 and ignores its tokenizer.json.
bool splits_as_qwen2(const data::Tokenizer& tokenizer);

/// Reads the tokenizer in a Hugging Face folder; returns an empty result if there is none. Throws Code::data naming the
/// file when it is damaged or of an unsupported kind.
std::optional<data::Tokenizer> find_tokenizer(const std::filesystem::path& folder);

}  // namespace trainer::huggingface
