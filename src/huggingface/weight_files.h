#pragma once
// The safetensors files of a model as one set of tensors.
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "huggingface/safetensors.h"

namespace trainer::huggingface {

/// True if a tensor is not a parameter but a buffer that older versions of the library stored: a mask or RoPE
/// frequencies.
bool is_constant(std::string_view tensor);

class WeightFiles {
 public:
  /// Opens model.safetensors, or the files that the index names. Throws Code::checkpoint when the folder has neither,
  /// or when a file is corrupt or is missing a parameter that the index lists.
  explicit WeightFiles(const std::filesystem::path& folder);

  struct Place {
    const SafetensorsFile* file;
    const TensorEntry* entry;
  };
  /// Returns a null file if there is no such tensor.
  Place find(const std::string& name) const;
  const std::map<std::string, Place>& tensors() const { return tensors_; }
  /// Returns the only file, or the index.
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place> tensors_;
};

}  // namespace trainer::huggingface
