#include "huggingface/export_source.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "config/load.h"

namespace trainer::huggingface {

namespace fs = std::filesystem;

TensorSource::TensorSource(const checkpoint::Reader& reader)
    : folder_(reader.folder()), shards_(reader.folder(), reader.manifest()) {
  for (const checkpoint::StoredTensor& tensor : reader.manifest().tensors)
    if (checkpoint::is_weight(tensor.name)) stored_[tensor.name] = &tensor;
}

void TensorSource::require_parts(const std::vector<MappedTensor>& all) const {
  std::set<std::string> expected;
  for (const MappedTensor& tensor : all) {
    for (size_t i = 0; i < tensor.parts.size(); ++i) {
      const std::string& part = tensor.parts[i].name;
      const Shape shape = tensor.part_shape(i);
      expected.insert(part);
      const auto found = stored_.find(part);
      if (found == stored_.end()) refuse(part, "missing from the checkpoint");
      const checkpoint::StoredTensor& stored = *found->second;
      if (stored.shape != shape)
        refuse(part, format("{}, but its model needs {}", to_string(stored.shape), to_string(shape)));
      if ((stored.dtype != DType::f32 && stored.dtype != DType::f64) || stored.dtype != stored_.begin()->second->dtype)
        refuse(part, format("elements of type {}, expected fp32 or fp64 for all weights", name_of(stored.dtype)));
    }
  }
  for (const auto& [name, tensor] : stored_)
    if (!expected.contains(name)) refuse(name, "Hugging Face's model has no such tensor");
}

std::span<const float> TensorSource::read(const MappedTensor& tensor) {
  const auto count = static_cast<size_t>(tensor.shape.count());
  values_.assign(count, 0.0f);
  for (size_t i = 0; i < tensor.parts.size(); ++i) {
    const checkpoint::StoredTensor& stored = *stored_.at(tensor.parts[i].name);
    void* memory = values_.data();
    if (stored.dtype == DType::f64) {
      wide_.resize(count);
      memory = wide_.data();
    }
    const Tensor local{static_cast<std::byte*>(memory), {tensor.shape.count()}, stored.dtype};
    shards_.fill({stored.name, stored.shape, local, tensor.runs(i)}, stored);
    if (stored.dtype == DType::f64 && i + 1 == tensor.parts.size())
      std::ranges::transform(wide_, values_.begin(), [](double value) { return static_cast<float>(value); });
  }
  return values_;
}

void TensorSource::refuse(const std::string& name, const std::string& reason) const {
  throw Error(Code::checkpoint, format("{}: {}: {}", folder_.string(), name, reason));
}

namespace {

data::SpecialTokens special_tokens_of(const checkpoint::Snapshot& header,
                                      const std::optional<data::Tokenizer>& tokenizer) {
  data::SpecialTokens special = header.special;
  if (tokenizer && special.eos.empty()) special.eos = {tokenizer->eos()};
  if (header.bos >= 0) special.bos = header.bos;
  // Between texts of a model that was not imported, EOS is the only token: it also begins them. Of its special tokens,
  // only those of a chat format are known.
  const bool own = header.special.empty() || (!special.chat_format.empty() && special.fields.empty());
  if (own && !special.bos && !special.eos.empty()) special.bos = tokenizer ? tokenizer->eos() : special.eos.front();
  return special;
}

}  // namespace

ExportSource::ExportSource(const fs::path& path, bool allow_nonfinite)
    : reader(path),
      config(config::load_text(reader.header().config_toml, (reader.folder() / "config.toml").string(), {},
                               {.files = false, .warns = false})),
      vocab(reader.vocab_size()),
      tokenizer(checkpoint::tokenizer_of(reader.header(), reader.folder())),
      special(special_tokens_of(reader.header(), tokenizer)),
      tensors(tensor_map(config.model, vocab)),
      weights(reader) {
  if (!reader.header().state.finite_weights && !allow_nonfinite)
    throw Error(Code::nonfinite, format("{}: some weights are not finite; export an earlier checkpoint, or use "
                                        "--allow-nonfinite to export it anyway",
                                        reader.folder().string()));
}

int64_t longest_text(const config::Model& model) { return std::max(model.max_positions, model.seq_len); }

}  // namespace trainer::huggingface
