#pragma once
// The input of every export: a checkpoint's model, tokenizer and weights.
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/shard.h"
#include "config/config.h"
#include "data/tokenizer.h"
#include "huggingface/tensor_map.h"

namespace trainer::huggingface {

/// Reads a checkpoint's tensors and returns them in Hugging Face's layout.
class TensorSource {
 public:
  explicit TensorSource(const checkpoint::Reader& reader);

  /// Throws unless the checkpoint has exactly the tensors that make up `all`.
  void require_parts(const std::vector<MappedTensor>& all) const;
  /// Returns all elements, valid until the next call.
  std::span<const float> read(const MappedTensor& tensor);
  /// Throws Code::checkpoint naming the checkpoint and one of its tensors.
  [[noreturn]] void refuse(const std::string& name, const std::string& reason) const;

 private:
  std::filesystem::path folder_;
  checkpoint::ShardReader shards_;
  std::map<std::string, const checkpoint::StoredTensor*> stored_;
  std::vector<float> values_;
  std::vector<double> wide_;
};

struct ExportSource {
  /// Throws Code::checkpoint for corrupt data, Code::nonfinite for weights that are not finite unless allowed.
  ExportSource(const std::filesystem::path& path, bool allow_nonfinite);

  checkpoint::Reader reader;
  config::Config config;
  int64_t vocab;
  std::optional<data::Tokenizer> tokenizer;
  data::SpecialTokens special;  // those of the checkpoint's files, completed by those of training
  std::vector<MappedTensor> tensors;
  TensorSource weights;
};

/// Returns the longest text that the model accepts, in tokens.
int64_t longest_text(const config::Model& model);

}  // namespace trainer::huggingface
