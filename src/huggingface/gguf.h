#pragma once
// A checkpoint as a GGUF file, which llama.cpp and programs built on it run.
#include <filesystem>

#include "huggingface/export.h"
#include "huggingface/gguf_file.h"

namespace trainer::huggingface {

struct GgufOptions {
  GgufType type = GgufType::f32;  // type of matrices; vectors and positions are always fp32
  bool allow_nonfinite = false;   // as in ExportOptions
};

/// Writes the file `output`, which must not exist, with model, tokenizer and weights. It is created completely or not
/// at all. `path` as in checkpoint::resolve(). Memory use is bounded by the largest tensor. Throws Code::checkpoint for
/// corrupt data and for models and tokenizers that llama.cpp cannot run, naming the key and its value.
Exported export_gguf(const std::filesystem::path& path, const std::filesystem::path& output,
                     const GgufOptions& options = {});

}  // namespace trainer::huggingface
