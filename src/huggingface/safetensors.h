#pragma once
// Safetensors files: the length of a JSON header (uint64), the header, then the bytes of all tensors without gaps, all
// little-endian. The header states each tensor's element type, shape, and first and end byte among these bytes.
// https://github.com/huggingface/safetensors#format
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_io.h"

namespace trainer::huggingface {

struct TensorEntry {
  std::string name, dtype;     // dtype: "F32", "BF16", …
  std::vector<int64_t> shape;  // empty: one element
  int64_t begin = 0, end = 0;  // bytes, counted from the end of the header
};

/// Parses a header and checks it completely: known types, shapes that agree with the bytes, tensors that fill
/// `data_bytes` without gap or overlap. `origin` names the file in messages. Throws Code::checkpoint for anything else.
std::vector<TensorEntry> parse_safetensors_header(std::string_view json, int64_t data_bytes, const std::string& origin);

/// An open safetensors file.
class SafetensorsFile {
 public:
  /// Reads and checks the header. Throws Code::checkpoint naming the file and the problem, Code::io if the system
  /// fails.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  /// Fills `bytes`, beginning at byte `offset` of the tensor.
  void read(const TensorEntry& tensor, int64_t offset, std::span<std::byte> bytes) const;

 private:
  File file_;
  int64_t data_ = 0;  // position of the first tensor
  std::vector<TensorEntry> tensors_;
};

/// Writes a safetensors file: the header first, then the tensors' bytes in the order given. The writer sets `begin`
/// and `end` of the entries.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorEntry> tensors);
  /// Appends bytes of the tensors.
  void write(std::span<const std::byte> bytes);
  /// Syncs and closes the file; every byte of the tensors must have been written.
  void finish();

 private:
  File file_;
  int64_t left_ = 0;
};

}  // namespace trainer::huggingface
