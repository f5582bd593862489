#pragma once
// The special tokens of a model of Hugging Face's transformers library, from the files next to its weights.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trainer::data {

/// Ids of special tokens; empty: unknown. They are kept with checkpoints and written back by exports.
struct SpecialTokens {
  std::vector<int32_t> eos;  // generation stops at each of them
  std::optional<int32_t> bos, pad, unk;
  bool add_eos = false;  // true if transformers' tokenizer ends texts with EOS

  bool operator==(const SpecialTokens&) const = default;
  bool empty() const { return *this == SpecialTokens(); }
};

/// Returns the id of a token by its name; empty: there is none.
using TokenId = std::function<std::optional<int32_t>(const std::string& name)>;

/// Reads the files in `folder` that exist. EOS is taken from the first of generation_config.json, config.json and
/// tokenizer_config.json that names one, all other tokens from tokenizer_config.json, else config.json. Throws
/// Code::data naming file, field and value for a damaged file, and for an id outside the vocabulary of config.json.
SpecialTokens read_special_tokens(const std::filesystem::path& folder, const TokenId& id_of);

}  // namespace trainer::data
