#include "huggingface/export.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/step_files.h"
#include "config/families.h"
#include "huggingface/export_source.h"
#include "huggingface/index.h"
#include "huggingface/model_config.h"
#include "huggingface/safetensors.h"
#include "huggingface/tensor_map.h"
#include "huggingface/tokenizer_files.h"

namespace trainer::huggingface {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kChunk = int64_t{1} << 18;  // elements converted at a time

int64_t bytes_of(const MappedTensor& tensor, FloatType type) { return tensor.shape.count() * size_of(type); }

TensorEntry entry_of(const MappedTensor& tensor, FloatType type) {
  return {tensor.name, std::string(stored_name(type)), tensor.shape.extents(), 0, 0};
}

/// Splits the list into files of at most `most` bytes.
std::vector<std::span<const MappedTensor>> cut_into_files(const std::vector<MappedTensor>& all, FloatType type,
                                                          int64_t most) {
  std::vector<std::span<const MappedTensor>> files;
  int64_t held = 0;
  size_t begin = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > begin && held + bytes_of(all[i], type) > most) {
      files.push_back(std::span(all).subspan(begin, i - begin));
      begin = i;
      held = 0;
    }
    held += bytes_of(all[i], type);
  }
  files.push_back(std::span(all).subspan(begin));
  return files;
}

void write_tensor(const MappedTensor& tensor, FloatType type, TensorSource& source, SafetensorsWriter& writer,
                  std::vector<std::byte>& buffer) {
  const std::span<const float> values = source.read(tensor);
  for (size_t at = 0; at < values.size(); at += kChunk) {
    const std::span<const float> chunk = values.subspan(at, std::min<size_t>(kChunk, values.size() - at));
    buffer.resize(chunk.size() * static_cast<size_t>(size_of(type)));
    if (const size_t lost = from_float(chunk, type, buffer); lost < chunk.size())
      source.refuse(tensor.parts.front().name, format("a weight of {} is too large for {}; use --dtype bf16 or fp32",
                                                      chunk[lost], torch_name(type)));
    writer.write(buffer);
  }
}

void write_weights(const fs::path& folder, const std::vector<MappedTensor>& all, const ExportOptions& options,
                   TensorSource& source, Exported& done) {
  const std::vector<std::span<const MappedTensor>> files = cut_into_files(all, options.type, options.shard_bytes);
  WeightIndex index;
  std::vector<std::byte> buffer;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = weights_file(i, files.size());
    std::vector<TensorEntry> entries;
    for (const MappedTensor& tensor : files[i]) entries.push_back(entry_of(tensor, options.type));
    SafetensorsWriter writer(folder / name, entries);
    for (const MappedTensor& tensor : files[i]) {
      write_tensor(tensor, options.type, source, writer, buffer);
      index.emplace_back(tensor.name, name);
      ++done.tensors;
      done.bytes += bytes_of(tensor, options.type);
    }
    writer.finish();
    done.files.push_back(name);
  }
  if (files.size() > 1) write_file(folder / kIndexFile, to_index_json(index, done.bytes));
}

}  // namespace

Exported export_model(const fs::path& path, const fs::path& output, const ExportOptions& options) {
  ExportSource source(path, options.allow_nonfinite);
  const config::Model& m = source.config.model;
  std::vector<NamedFile> files{{"config.json", to_config_json(m, source.vocab, source.special, options.type)},
                               {"generation_config.json", to_generation_config_json(source.special)}};
  if (source.tokenizer)
    std::ranges::move(tokenizer_files(*source.tokenizer, source.special, longest_text(m)), std::back_inserter(files));
  if (m.arch == config::Arch::qwen2 && source.tokenizer && !splits_as_qwen2(*source.tokenizer))
    log::warning(
        "AutoTokenizer of transformers 5 ignores the tokenizer.json of Qwen2 models and splits text as Qwen's own "
        "tokenizer does, which this one does not: load it with PreTrainedTokenizerFast.from_pretrained, or train "
        "model.arch = \"llama\" or \"qwen3\"");
  source.weights.require_parts(source.tensors);
  const bool all_biases = m.bias.value() && attention_bias(m) == config::AttentionBias::all && has_mlp_bias(m);
  if (config::family_of(m).hugging_face.form == config::FileForm::gpt2 && !all_biases)
    log::info("model.bias = false: Hugging Face's GPT-2 always has biases, so zeros are written for them");
  Exported done{source.reader.folder(), {}, 0, 0};
  checkpoint::write_new_folder(output, [&](const fs::path& folder) {
    write_weights(folder, source.tensors, options, source.weights, done);
    for (const NamedFile& file : files) write_file(folder / file.name, file.bytes);
    sync_folder(folder);
  });
  return done;
}

}  // namespace trainer::huggingface
