#pragma once
// The special tokens of a model of Hugging Face's transformers library, from the files next to its weights.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trainer::data {

/// Ids of special tokens; empty: unknown. They are kept with checkpoints and written back by exports.
struct SpecialTokens {
  std::vector<int32_t> eos;  // generation stops at each of them
  std::optional<int32_t> bos, pad, unk;
  bool add_eos = false;             // true if transformers' tokenizer ends texts with EOS
  std::optional<int32_t> text_end;  // ends documents; empty: the token that the tokenizer itself names
  std::string chat_format;          // the format of the conversations that were trained on; empty: none were
  /// The fields of each JSON file that exports write back: the file's name, and an object with these fields as they
  /// were. Of config.json and generation_config.json those that name special tokens; of tokenizer_config.json all that
  /// neither the tokenizer nor the run decides, with the names that transformers uses, including defaults.
  std::map<std::string, std::string> fields;

  bool operator==(const SpecialTokens&) const = default;
  bool empty() const { return *this == SpecialTokens(); }
};

/// Returns the id of a token by its name; empty: there is none.
using TokenId = std::function<std::optional<int32_t>(const std::string& name)>;

/// Reads the files in `folder` that exist. EOS is taken from the first of generation_config.json, config.json and
/// tokenizer_config.json that names one, all other tokens from tokenizer_config.json, else config.json. Names in
/// special_tokens_map.json replace those of a tokenizer_config.json without added_tokens_decoder. Throws Code::data
/// naming file, field and value for a damaged file, and for an id outside the vocabulary of config.json.
SpecialTokens read_special_tokens(const std::filesystem::path& folder, const TokenId& id_of);

/// Returns the model's chat template, of several the default one; empty: there is none.
std::string chat_template(const SpecialTokens& special);

/// Returns the names of all special tokens that tokenizer_config.json and special_tokens_map.json name in `folder`.
std::vector<std::string> special_names(const std::filesystem::path& folder);

/// Returns transformers' class for the tokenizer in `folder`, as AutoTokenizer chooses it, without "Fast"; empty:
/// unknown.
std::string tokenizer_class(const std::filesystem::path& folder);

/// Returns add_prefix_space of tokenizer_config.json; empty if it is not there or the class is the general one, which
/// ignores it.
std::optional<bool> prefix_setting(const std::filesystem::path& folder);

/// A token that the files of a model name as EOS.
struct ConfiguredEnd {
  int32_t id;
  bool named;       // true if tokenizer_config.json names it; false: an id in config.json
  bool ends_turns;  // true if a chat template contains its name
};
/// Returns eos_token of `special`, which was read from `folder`, else eos_token_id of config.json.
std::vector<ConfiguredEnd> configured_ends(const std::filesystem::path& folder, const SpecialTokens& special,
                                           const TokenId& id_of, const std::function<std::string(int32_t)>& name_of);

}  // namespace trainer::data
