#pragma once
// The index of weights that are distributed over several safetensors files: which tensor is in which file.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trainer::huggingface {

constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kWeightsFile = "model.safetensors";

using WeightIndex = std::vector<std::pair<std::string, std::string>>;  // tensor, file

/// Returns "model.safetensors", or "model-00002-of-00003.safetensors" for i = 1 of 3.
std::string weights_file(size_t i, size_t files);
std::string to_index_json(const WeightIndex& index, int64_t bytes);
/// Throws Code::checkpoint, naming `origin`, for anything that is not an index of plain safetensors files next to it.
WeightIndex parse_index_json(std::string_view json, const std::string& origin);

}  // namespace trainer::huggingface
