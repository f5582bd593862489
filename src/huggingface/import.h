#pragma once
// A model of Hugging Face's transformers library as a checkpoint.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trainer::huggingface {

struct Imported {
  int64_t tensors = 0, bytes = 0, parameters = 0;  // written
  bool tokenizer = false;
};

/// True if the folder has a model in Hugging Face's files, not a checkpoint of this program.
bool is_model_folder(const std::filesystem::path& folder);
/// Returns data.vocab_size and the keys of [model] that a run from these weights needs, in the form of --set; empty if
/// the folder has no such model. Dropout is not included, since it is a setting of the run.
std::vector<std::string> settings_of(const std::filesystem::path& folder);

/// Writes the step folder `output`, which must not exist, from the folder `input`: config.json, the weights in
/// safetensors files, and the tokenizer if there is one. It contains fp32 weights and no optimizer state: enough
/// to evaluate, to generate, and to initialise a run (model.init_from). The model computes in fp32, whatever the type
/// of the files.
///
/// Memory use is bounded by the largest tensor. The files must contain exactly the model's tensors: any field or tensor
/// that this program cannot represent is rejected by name. Throws Code::checkpoint for this and for corrupt files,
/// Code::data for a damaged tokenizer, Code::io when writing fails.
/// `seq_len` is as in parse_config_json().
Imported import_model(const std::filesystem::path& input, const std::filesystem::path& output, int64_t seq_len = 0);

}  // namespace trainer::huggingface
