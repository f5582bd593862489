#include "huggingface/import.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/join.h"
#include "base/log.h"
#include "checkpoint/model_keys.h"
#include "checkpoint/shard.h"
#include "checkpoint/step_files.h"
#include "config/families.h"
#include "config/text.h"
#include "huggingface/model_config.h"
#include "huggingface/tensor_map.h"
#include "huggingface/tokenizer_files.h"
#include "huggingface/weight_files.h"

namespace trainer::huggingface {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kConverted = int64_t{1} << 18;  // elements converted at a time
constexpr int64_t kLargestConfig = int64_t{1} << 20;
constexpr const char *kHeads[] = {"lm_head.weight", "embed_out.weight", "language_model.lm_head.weight"},
                     *kTable = "wte", *kHead = "head.weight", *kConfigFile = "config.json";

constexpr const char *kText = "language_model.", *kNotText[] = {"vision_tower.", "multi_modal_projector."};

bool is_head(std::string_view name) { return std::ranges::count(kHeads, name) > 0; }

/// True for a tensor of a multimodal model that its text model does not have.
bool is_not_text(std::string_view name) {
  return std::ranges::any_of(kNotText, [&](const char* prefix) { return name.starts_with(prefix); });
}

/// Reads the tensors of a model from its files.
class TensorReader {
 public:
  TensorReader(const WeightFiles& files, const config::Model& model)
      : files_(files),
        prefix_(name_prefix(model)),
        tied_(model.tie_embeddings.value()),
        multimodal_(config::family_of(model).hugging_face.multimodal != nullptr) {}

  /// Returns the position of a tensor. Files of models without a head omit the prefix of the names. The head has one of
  /// two names, and a tied embedding may be stored under that only.
  WeightFiles::Place place_of(const MappedTensor& tensor) const {
    WeightFiles::Place place = files_.find(tensor.name);
    if (place.file == nullptr && tensor.name.starts_with(prefix_))
      place = files_.find(tensor.name.substr(prefix_.size()));
    if (place.file == nullptr && multimodal_) place = files_.find(kText + tensor.name);
    if (place.file == nullptr && !tensor.parts.empty() && tensor.parts.front().name == (tied_ ? kTable : kHead))
      for (const char* name : kHeads)
        if (place.file == nullptr) place = files_.find(name);
    return place;
  }

  /// Throws unless the files contain exactly these tensors. They may also contain a tied head, which must equal the
  /// embedding.
  void require_tensors(const std::vector<MappedTensor>& all) {
    std::set<std::string> used;
    for (const MappedTensor& tensor : all) {
      const WeightFiles::Place place = place_of(tensor);
      if (place.file == nullptr)
        throw Error(Code::checkpoint, format("{}: {}: missing, but required by the model in config.json",
                                             files_.path().string(), tensor.name));
      if (place.entry->shape != tensor.shape.extents())
        refuse(place, format("shape [{}], but the model in config.json requires {}",
                             fmt::join(place.entry->shape, ", "), to_string(tensor.shape)));
      if (!find_stored(place.entry->dtype))
        refuse(place, format("elements of type {}, expected F32, BF16, F16 or F64", place.entry->dtype));
      used.insert(place.entry->name);
    }
    for (const auto& [name, place] : files_.tensors()) {
      if (used.contains(name) || is_constant(name) || (multimodal_ && is_not_text(name))) continue;
      if (!is_head(name) || !tied_) refuse(place, "this program's model has no such tensor");
      require_same(place, place_of(all.front()));
    }
  }

  /// Returns all elements, valid until the next call.
  std::span<float> read(const MappedTensor& tensor) {
    const WeightFiles::Place place = place_of(tensor);
    const FloatType type = *find_stored(place.entry->dtype);
    values_.resize(static_cast<size_t>(tensor.shape.count()));
    for (size_t at = 0; at < values_.size(); at += kConverted) {
      const std::span<float> chunk = std::span(values_).subspan(at, std::min<size_t>(kConverted, values_.size() - at));
      const auto size = static_cast<size_t>(size_of(type));
      buffer_.resize(chunk.size() * size);
      place.file->read(*place.entry, static_cast<int64_t>(at * size), buffer_);
      to_float(type, buffer_, chunk);
    }
    return values_;
  }

 private:
  [[noreturn]] static void refuse(const WeightFiles::Place& place, const std::string& reason) {
    throw Error(Code::checkpoint, format("{}: {}: {}", place.file->path().string(), place.entry->name, reason));
  }
  static void require_same(const WeightFiles::Place& head, const WeightFiles::Place& table) {
    bool same = head.entry->dtype == table.entry->dtype && head.entry->shape == table.entry->shape;
    std::vector<std::byte> one(1 << 20), other(one.size());
    for (int64_t at = 0, end = head.entry->end - head.entry->begin; same && at < end;) {
      const auto length = std::min(end - at, static_cast<int64_t>(one.size()));
      const std::span<std::byte> here(one.data(), static_cast<size_t>(length)), there(other.data(), here.size());
      head.file->read(*head.entry, at, here);
      table.file->read(*table.entry, at, there);
      same = std::ranges::equal(here, there);
      at += length;
    }
    if (!same) refuse(head, format("tie_word_embeddings is true, but this tensor differs from {}", table.entry->name));
  }

  const WeightFiles& files_;
  const std::string prefix_;
  const bool tied_, multimodal_;
  std::vector<float> values_;
  std::vector<std::byte> buffer_;
};

checkpoint::Snapshot header_of(const ModelConfig& model, const std::optional<data::Tokenizer>& tokenizer,
                               const fs::path& input) {
  checkpoint::Snapshot header;
  header.config_toml = config::to_toml(model.config);
  header.model_keys = checkpoint::model_keys(model.config.model, model.vocab);
  header.tied = model.config.model.tie_embeddings.value();
  header.compute = name_of(DType::f32);
  if (tokenizer) {
    header.tokenizer = tokenizer->bytes();
    header.tokenizer_hash = tokenizer->hash();
    header.bos = tokenizer->bos();
    header.special = tokenizer->special();
  } else {
    header.special = data::read_special_tokens(input, [](const std::string&) { return std::nullopt; });
  }
  return header;
}

void write_tensors(checkpoint::ShardWriter& shard, const std::vector<MappedTensor>& all, TensorReader& reader,
                   Imported& done, bool& finite) {
  for (const MappedTensor& tensor : all) {
    const std::span<float> values = reader.read(tensor);
    finite = finite && std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
    const Tensor local{reinterpret_cast<std::byte*>(values.data()), {tensor.shape.count()}, DType::f32};
    for (size_t i = 0; i < tensor.parts.size(); ++i) {
      shard.add({tensor.parts[i].name, tensor.part_shape(i), local, tensor.runs(i)});
      if (tensor.slice <= 0) ++done.tensors;
    }
    done.parameters += tensor.shape.count();
    done.bytes += local.bytes();
  }
}

}  // namespace

bool is_model_folder(const fs::path& folder) {
  std::error_code none;
  return fs::is_regular_file(folder / kConfigFile, none);
}

std::vector<std::string> settings_of(const fs::path& folder) {
  if (!is_model_folder(folder)) return {};
  const fs::path file = folder / kConfigFile;
  ModelConfig model = parse_config_json(read_file(file, kLargestConfig), file.string());
  std::erase_if(model.settings, [](const std::string& set) { return set.starts_with("model.dropout="); });
  model.settings.push_back(format("data.vocab_size={}", model.vocab));
  return std::move(model.settings);
}

Imported import_model(const fs::path& input, const fs::path& output, int64_t seq_len) {
  const fs::path config_file = input / kConfigFile;
  if (!is_model_folder(input))
    throw Error(Code::checkpoint, format("{}: {}; expected a folder with config.json, model.safetensors and the "
                                         "tokenizer's files, as `hf download` writes it",
                                         input.string(), fs::exists(input) ? "has no config.json" : "not found"));
  const ModelConfig model = parse_config_json(read_file(config_file, kLargestConfig), config_file.string(), seq_len);
  std::optional<data::Tokenizer> tokenizer = find_tokenizer(input);
  if (tokenizer) tokenizer->use_bos(config::Bos::automatic, input.string());
  if (tokenizer && tokenizer->vocab_size() > model.vocab)
    throw Error(Code::checkpoint, format("{}: vocab_size: {}, but the tokenizer next to it has {} tokens; remove the "
                                         "tokenizer's files to import the model for training on .bin files",
                                         config_file.string(), model.vocab, tokenizer->vocab_size()));
  const WeightFiles files(input);
  const std::vector<MappedTensor> tensors = tensor_map(model.config.model, model.vocab);
  TensorReader reader(files, model.config.model);
  reader.require_tensors(tensors);
  Imported done;
  done.tokenizer = tokenizer.has_value();
  checkpoint::write_new_folder(output, [&](const fs::path& folder) {
    checkpoint::ShardWriter shard(folder / "weights-00000.shard", 0);
    checkpoint::Manifest manifest;
    manifest.header = header_of(model, tokenizer, input);
    write_tensors(shard, tensors, reader, done, manifest.header.state.finite_weights);
    if (!manifest.header.state.finite_weights)
      log::warning("{}: some weights are not finite: this model cannot be used for training, evaluation or generation",
                   input.string());
    checkpoint::WrittenShard written = shard.finish();
    checkpoint::Manifest part;  // has a piece for each expert of a tensor
    part.shards.push_back(std::move(written.file));
    part.tensors = std::move(written.tensors);
    merge_part(manifest, part);
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    manifest.sequence = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
    checkpoint::complete_step_folder(folder, std::move(manifest));
  });
  if (!done.tokenizer)
    log::warning(
        "{}: no tokenizer found, so the checkpoint can be trained and evaluated on .bin files only; `generate` "
        "requires one",
        input.string());
  return done;
}

}  // namespace trainer::huggingface
