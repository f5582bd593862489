#include "huggingface/weight_files.h"

#include <algorithm>

#include "base/error.h"
#include "huggingface/index.h"

namespace trainer::huggingface {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kLargestIndex = int64_t{16} << 20;

/// Returns the files to open, each once, and for each tensor of an index its file.
std::vector<std::string> files_of(const fs::path& folder, WeightIndex& index) {
  std::error_code none;
  if (fs::exists(folder / kWeightsFile, none)) return {kWeightsFile};  // first, as in transformers
  if (fs::exists(folder / kIndexFile, none)) {
    index = parse_index_json(read_file(folder / kIndexFile, kLargestIndex), (folder / kIndexFile).string());
    std::vector<std::string> files;
    for (const auto& [tensor, file] : index) files.push_back(file);
    std::ranges::sort(files);
    files.erase(std::unique(files.begin(), files.end()), files.end());
    return files;
  }
  const bool pickled =
      fs::exists(folder / "pytorch_model.bin", none) || fs::exists(folder / "pytorch_model.bin.index.json", none);
  throw Error(
      Code::checkpoint,
      format("{}: neither {} nor {} found{}", folder.string(), kWeightsFile, kIndexFile,
             pickled
                 ? "; convert pytorch_model.bin to safetensors first, for example with transformers' save_pretrained"
                 : ""));
}

}  // namespace

bool is_constant(std::string_view tensor) {
  return tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias") ||
         tensor.ends_with(".attention.bias") || tensor.ends_with(".attention.masked_bias") ||
         tensor.ends_with("rotary_emb.inv_freq");
}

WeightFiles::WeightFiles(const fs::path& folder) {
  WeightIndex index;
  const std::vector<std::string> names = files_of(folder, index);
  path_ = folder / (index.empty() ? kWeightsFile : kIndexFile);
  files_.reserve(names.size());
  for (const std::string& name : names) files_.emplace_back(folder / name);
  for (const SafetensorsFile& file : files_)
    for (const TensorEntry& entry : file.tensors())
      if (!tensors_.emplace(entry.name, Place{&file, &entry}).second)
        throw Error(Code::checkpoint, format("{}: {}: also in {}", file.path().string(), entry.name,
                                             tensors_.at(entry.name).file->path().filename().string()));
  for (const auto& [tensor, name] : index) {
    if (is_constant(tensor)) continue;
    const Place place = find(tensor);
    if (place.file == nullptr || place.file->path().filename() != name)
      throw Error(Code::checkpoint, format("{}: {}: missing from this file, although {} lists it there",
                                           (folder / name).string(), tensor, kIndexFile));
  }
}

WeightFiles::Place WeightFiles::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? Place{} : found->second;
}

}  // namespace trainer::huggingface
