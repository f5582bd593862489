#pragma once
// The tokenizer of a checkpoint as the files that Hugging Face's AutoTokenizer loads, and back.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace trainer::huggingface {

struct NamedFile {
  std::string name, bytes;
};

/// Returns tokenizer.json, tokenizer_config.json and the tokenizer's own file. `seq_len` is the longest text the model
/// takes.
std::vector<NamedFile> tokenizer_files(const data::Tokenizer& tokenizer, int64_t seq_len);

/// Finds the tokenizer in a folder of Hugging Face's; nothing when there is none that this program reads, with a
/// warning when there is another one. Throws Code::data naming the file when it is damaged.
std::optional<data::Tokenizer> find_tokenizer(const std::filesystem::path& folder);

}  // namespace trainer::huggingface
