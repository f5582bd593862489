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

/// Returns tokenizer.json, tokenizer_config.json and the tokenizer's own file; of byte-level BPE also vocab.json and
/// merges.txt. `seq_len` is the longest text the model takes.
std::vector<NamedFile> tokenizer_files(const data::Tokenizer& tokenizer, int64_t seq_len);

/// Reads the tokenizer in a folder of Hugging Face's; nothing when there is none. Throws Code::data naming the file
/// when it is damaged or of a kind that this program does not have.
std::optional<data::Tokenizer> find_tokenizer(const std::filesystem::path& folder);

}  // namespace trainer::huggingface
