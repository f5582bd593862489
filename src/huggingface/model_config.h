#pragma once
// config.json of Hugging Face's GPT-2 models and of the families derived from Llama, and its translation to and from
// model keys.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "data/special_tokens.h"
#include "huggingface/float_types.h"

namespace trainer::huggingface {

struct ModelConfig {
  config::Config config;  // the model; everything else has its default; resolved
  int64_t vocab = 0;
  std::vector<std::string> settings;  // keys of [model] with their values, in the form of --set
};

/// Returns config.json of a model whose weights are stored as `type`. Throws Code::checkpoint, naming the key and its
/// value, for a model that its family's Hugging Face architecture cannot represent.
std::string to_config_json(const config::Model& model, int64_t vocab, const std::optional<data::SpecialTokens>& special,
                           FloatType type);
/// Returns why such a model cannot be exported, naming the key and its value; empty if it can.
std::string export_obstacle(const config::Model& model);
/// Returns generation_config.json.
std::string to_generation_config_json(const data::SpecialTokens& special);

/// Reads config.json. Throws Code::checkpoint, naming `origin`, the field and its value, for a model that this program
/// does not support. `seq_len` 0: the file's context length, but at most 4096.
ModelConfig parse_config_json(std::string_view json, const std::string& origin, int64_t seq_len = 0);

}  // namespace trainer::huggingface
