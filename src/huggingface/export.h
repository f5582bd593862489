#pragma once
// A checkpoint as a model of Hugging Face's transformers library.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "huggingface/float_types.h"

namespace trainer::huggingface {

struct ExportOptions {
  FloatType type = FloatType::f32;
  int64_t shard_bytes = 5'000'000'000;  // size limit of the tensors in one file, unless a single one is larger
  bool allow_nonfinite = false;         // if false, weights that are not finite are rejected (Code::nonfinite)
};
struct Exported {
  std::filesystem::path source;    // the step folder that was read
  std::vector<std::string> files;  // files with the weights
  int64_t tensors = 0, bytes = 0;  // size of the weights
};

/// Writes the folder `output`, which must not exist: weights (model.safetensors, or shards with an index), config.json,
/// generation_config.json and the tokenizer. The folder is created completely or not at all. It depends on
/// the tensors, model and tokenizer of the checkpoint, but not on the layout. `path` as in checkpoint::resolve().
/// Memory use is bounded by the largest tensor; every byte read is verified. Throws Code::checkpoint for corrupt data
/// and for models that Hugging Face cannot represent, Code::io when writing fails.
Exported export_model(const std::filesystem::path& path, const std::filesystem::path& output,
                      const ExportOptions& options = {});

}  // namespace trainer::huggingface
