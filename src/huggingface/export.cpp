#include "huggingface/export.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/reader.h"
#include "checkpoint/shard.h"
#include "checkpoint/step_files.h"
#include "config/load.h"
#include "huggingface/index.h"
#include "huggingface/model_config.h"
#include "huggingface/safetensors.h"
#include "huggingface/tensor_map.h"
#include "huggingface/tokenizer_files.h"

namespace trainer::huggingface {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kChunk = int64_t{1} << 18;  // elements converted at a time

/// Reads the tensors of a checkpoint in Hugging Face's layout.
class TensorSource {
 public:
  TensorSource(SystemCalls& calls, const checkpoint::Reader& reader)
      : folder_(reader.folder()), shards_(calls, reader.folder(), reader.manifest()) {
    for (const checkpoint::StoredTensor& tensor : reader.manifest().tensors)
      if (tensor.name.find('#') == tensor.name.npos) stored_[tensor.name] = &tensor;  // no moments
  }

  /// Throws unless the checkpoint has exactly the tensors that make up `all`.
  void require_parts(const std::vector<MappedTensor>& all) const {
    std::set<std::string> wanted;
    for (const MappedTensor& tensor : all) {
      for (const std::string& part : tensor.parts) {
        wanted.insert(part);
        const auto found = stored_.find(part);
        if (found == stored_.end()) refuse(part, "missing from the checkpoint");
        const checkpoint::StoredTensor& stored = *found->second;
        if (stored.shape != tensor.part_shape())
          refuse(part, format("{}, but its model needs {}", to_string(stored.shape), to_string(tensor.part_shape())));
        if ((stored.dtype != DType::f32 && stored.dtype != DType::f64) ||
            stored.dtype != stored_.begin()->second->dtype)
          refuse(part, format("elements of type {}, expected fp32 or fp64 for all weights", name_of(stored.dtype)));
      }
    }
    for (const auto& [name, tensor] : stored_)
      if (!wanted.contains(name)) refuse(name, "Hugging Face's model has no such tensor");
  }

  /// Returns all elements, valid until the next call.
  std::span<const float> read(const MappedTensor& tensor) {
    const auto count = static_cast<size_t>(tensor.shape.count());
    values_.assign(count, 0.0f);
    for (size_t i = 0; i < tensor.parts.size(); ++i) {
      const checkpoint::StoredTensor& stored = *stored_.at(tensor.parts[i]);
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

  [[noreturn]] void refuse(const std::string& name, const std::string& reason) const {
    throw Error(Code::checkpoint, format("{}: {}: {}", folder_.string(), name, reason));
  }

 private:
  fs::path folder_;
  checkpoint::ShardReader shards_;
  std::map<std::string, const checkpoint::StoredTensor*> stored_;
  std::vector<float> values_;
  std::vector<double> wide_;
};

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
      source.refuse(tensor.parts.front(), format("a weight of {} is too large for {}; use --dtype bf16 or fp32",
                                                 chunk[lost], torch_name(type)));
    writer.write(buffer);
  }
}

void write_weights(SystemCalls& calls, const fs::path& folder, const std::vector<MappedTensor>& all,
                   const ExportOptions& options, TensorSource& source, Exported& done) {
  const std::vector<std::span<const MappedTensor>> files = cut_into_files(all, options.type, options.shard_bytes);
  WeightIndex index;
  std::vector<std::byte> buffer;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = weights_file(i, files.size());
    std::vector<TensorEntry> entries;
    for (const MappedTensor& tensor : files[i]) entries.push_back(entry_of(tensor, options.type));
    SafetensorsWriter writer(calls, folder / name, entries);
    for (const MappedTensor& tensor : files[i]) {
      write_tensor(tensor, options.type, source, writer, buffer);
      index.emplace_back(tensor.name, name);
      ++done.tensors;
      done.bytes += bytes_of(tensor, options.type);
    }
    writer.finish();
    done.files.push_back(name);
  }
  if (files.size() > 1) write_file(calls, folder / kIndexFile, to_index_json(index, done.bytes));
}

}  // namespace

Exported export_model(const fs::path& path, const fs::path& output, const ExportOptions& options, SystemCalls& calls) {
  const checkpoint::Reader reader(path, calls);
  const checkpoint::Snapshot& header = reader.header();
  const config::Config config =
      config::load_text(header.config_toml, (reader.folder() / "config.toml").string(), {}, {.files = false});
  if (!header.state.finite_weights && !options.allow_nonfinite)
    throw Error(Code::nonfinite, format("{}: some weights are not finite; export an earlier checkpoint, or use "
                                        "--allow-nonfinite to export it anyway",
                                        reader.folder().string()));
  const int64_t vocab = reader.vocab_size();
  const std::optional<data::Tokenizer> tokenizer = checkpoint::tokenizer_of(header, reader.folder());
  const std::optional<int32_t> eos = tokenizer ? std::optional(tokenizer->eos()) : std::nullopt;
  const std::optional<int32_t> bos = header.bos < 0 ? eos : header.bos;
  std::vector<NamedFile> files{{"config.json", to_config_json(config.model, vocab, eos, options.type, bos)},
                               {"generation_config.json", to_generation_config_json(eos, bos)}};
  if (tokenizer) std::ranges::move(tokenizer_files(*tokenizer, config.model.seq_len), std::back_inserter(files));
  const std::vector<MappedTensor> tensors = tensor_map(config.model, vocab);
  TensorSource source(calls, reader);
  source.require_parts(tensors);
  const config::Model& m = config.model;
  const bool all_biases = m.bias.value() && attention_bias(m) == config::AttentionBias::all && has_mlp_bias(m);
  if (m.arch == config::Arch::gpt2 && !all_biases)
    log::info("model.bias = false: Hugging Face's GPT-2 always has biases, so zeros are written for them");
  Exported done{reader.folder(), {}, 0, 0};
  checkpoint::write_new_folder(calls, output, [&](const fs::path& folder) {
    write_weights(calls, folder, tensors, options, source, done);
    for (const NamedFile& file : files) write_file(calls, folder / file.name, file.bytes);
    sync_folder(calls, folder);
  });
  return done;
}

}  // namespace trainer::huggingface
