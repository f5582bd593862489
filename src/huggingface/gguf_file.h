#pragma once
// GGUF files, version 3: one file with metadata, the tokenizer and the weights, which llama.cpp and programs built on
// it run. The layout: "GGUF", version, numbers of tensors and metadata (uint64), metadata (key, type, value), for each
// tensor its name, shape, type and place, then the tensors' bytes at multiples of 32. All numbers are little-endian.
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/file_io.h"
#include "base/shape.h"

namespace trainer::huggingface {

/// The type of a tensor's elements, with its number in the format. q8_0: blocks of 32 elements, each an fp16 scale and
/// 32 signed bytes.
enum class GgufType : uint32_t { f32 = 0, f16 = 1, q8_0 = 8, bf16 = 30 };
constexpr int64_t kGgufBlock = 32;  // elements of a q8_0 block; rows are whole blocks

int64_t gguf_bytes(GgufType type, int64_t elements);

using GgufValue = std::variant<uint32_t, float, bool, std::string, std::vector<std::string>, std::vector<int32_t>,
                               std::vector<float>>;
using GgufMetadata = std::vector<std::pair<std::string, GgufValue>>;

struct GgufTensor {
  std::string name;
  Shape shape;  // row-major; the file lists the sizes in reverse
  GgufType type = GgufType::f32;
};

/// Converts elements to their bytes in the file; `values` are whole blocks of q8_0. Returns the index of the first
/// finite element that is too large for the type; values.size() if there is none.
size_t gguf_convert(std::span<const float> values, GgufType type, std::vector<std::byte>& out);

class GgufWriter {
 public:
  GgufWriter(const std::filesystem::path& path, const GgufMetadata& metadata, std::vector<GgufTensor> tensors);
  /// Appends bytes of the tensors, in order; the writer adds the padding between tensors.
  void write(std::span<const std::byte> bytes);
  /// Syncs and closes the file; every byte of the tensors must have been written.
  void finish();

 private:
  File file_;
  std::vector<GgufTensor> tensors_;
  size_t tensor_ = 0;    // being written
  int64_t written_ = 0;  // bytes of it
};

}  // namespace trainer::huggingface
