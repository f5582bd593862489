#include "checkpoint/merge.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/error.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"
#include "checkpoint/shard.h"
#include "checkpoint/step_files.h"

namespace trainer::checkpoint {

namespace fs = std::filesystem;

namespace {

using Weights = std::map<std::string, const StoredTensor*>;

Weights weights_of(const Reader& reader) {
  Weights weights;
  for (const StoredTensor& tensor : reader.manifest().tensors)
    if (is_weight(tensor.name)) weights[tensor.name] = &tensor;
  return weights;
}

std::string text_of(const Weights& weights, const std::string& name) {
  const auto found = weights.find(name);
  return found == weights.end() ? "nothing"
                                : format("{} {}", name_of(found->second->dtype), to_string(found->second->shape));
}

/// Throws unless both checkpoints have the same model keys, tokenizer and weights.
void require_same_model(const Reader& one, const Reader& other) {
  const auto refuse = [&](const std::string& what, const std::string& before, const std::string& now) {
    throw Error(Code::checkpoint, format("{}: {}: {}, but {} has {}; merge checkpoints of one model",
                                         other.folder().string(), what, now, one.folder().string(), before));
  };
  const auto &a = one.header().model_keys, &b = other.header().model_keys;
  const auto value = [](const std::map<std::string, std::string>& keys, const std::string& key) {
    const auto found = keys.find(key);
    return found == keys.end() ? "none" : found->second;
  };
  for (const auto* keys : {&a, &b})
    for (const auto& [key, ignored] : *keys)
      if (value(a, key) != value(b, key)) refuse(key, value(a, key), value(b, key));
  if (one.header().tokenizer_hash != other.header().tokenizer_hash)
    refuse("tokenizer", one.header().tokenizer_hash, other.header().tokenizer_hash);
  const Weights mine = weights_of(one), others = weights_of(other);
  for (const Weights* weights : {&mine, &others})
    for (const auto& [name, tensor] : *weights)
      if (text_of(mine, name) != text_of(others, name)) refuse(name, text_of(mine, name), text_of(others, name));
}

/// Returns how many times each checkpoint counts, see merge().
std::vector<double> counts_of(const std::vector<Reader>& readers, double decay) {
  std::vector<double> counts(readers.size(), 1.0);
  if (decay == 1) return counts;
  const auto step = [&](size_t i) { return readers[i].header().state.step; };
  for (size_t i = 1; i < readers.size(); ++i)
    if (step(i) <= step(i - 1))
      throw Error(Code::checkpoint,
                  format("{} is of step {}, but the older {} of step {}; with --decay, merge "
                         "checkpoints of one run",
                         readers[i].folder().string(), step(i), readers[i - 1].folder().string(), step(i - 1)));
  for (size_t i = 0; i + 1 < readers.size(); ++i)
    counts[i] = std::pow(
        decay, static_cast<double>(step(readers.size() - 1) - step(i)) / static_cast<double>(step(1) - step(0)));
  return counts;
}

/// Reads one tensor of a checkpoint at a time, which counts `count` times.
class Source {
 public:
  Source(const Reader& reader, double count)
      : count(count), shards_(reader.folder(), reader.manifest()), weights_(weights_of(reader)) {}

  /// Fills `values`, which has elements of the stored type.
  void read(const StoredTensor& tensor, std::vector<std::byte>& values) {
    shards_.fill(tensor.slice(values.data()), *weights_.at(tensor.name));
  }

  const double count;

 private:
  ShardReader shards_;
  Weights weights_;
};

/// Replaces `values` by the mean over all sources.
template <typename T>
void average(const StoredTensor& tensor, std::vector<Source>& sources, std::vector<std::byte>& values) {
  std::vector<double> sums(static_cast<size_t>(tensor.shape.count()));
  double total = 0;
  auto* elements = reinterpret_cast<T*>(values.data());
  for (Source& source : sources) {
    source.read(tensor, values);
    total += source.count;
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += source.count * static_cast<double>(elements[i]);
  }
  for (size_t i = 0; i < sums.size(); ++i) elements[i] = static_cast<T>(sums[i] / total);
}

Snapshot header_of(const std::vector<Reader>& readers) {
  Snapshot header = readers.back().header();
  header.state.best_val_loss = header.state.val_loss = header.state.loss = std::numeric_limits<double>::quiet_NaN();
  header.state.best_step = header.state.proven_step = -1;
  header.state.best_set.clear();
  header.state.best_data.clear();
  header.state.origin = header.state.skipped_in_row = 0;
  header.merged_from.clear();
  for (const Reader& reader : readers) {
    header.state.finite_weights = header.state.finite_weights && reader.header().state.finite_weights;
    header.merged_from.push_back({reader.folder().string(), reader.header().state.step, reader.manifest().sequence});
  }
  return header;
}

void write_step(const std::vector<Reader>& readers, const std::vector<double>& counts, const fs::path& folder,
                Merged& done) {
  std::vector<Source> sources;
  for (size_t i = 0; i < readers.size(); ++i) sources.emplace_back(readers[i], counts[i]);
  ShardWriter shard(folder / "weights-00000.shard", 0);
  std::vector<std::byte> values;
  for (const auto& [name, tensor] : weights_of(readers.back())) {
    values.resize(static_cast<size_t>(tensor->bytes()));
    if (tensor->dtype != DType::f32 && tensor->dtype != DType::f64)
      throw Error(Code::checkpoint, format("{}: {}: elements of type {}, expected fp32 or fp64",
                                           readers.back().folder().string(), name, name_of(tensor->dtype)));
    tensor->dtype == DType::f64 ? average<double>(*tensor, sources, values) : average<float>(*tensor, sources, values);
    shard.add(tensor->slice(values.data()));
    ++done.tensors;
    done.bytes += tensor->bytes();
  }
  Manifest manifest;
  WrittenShard written = shard.finish();
  manifest.shards.push_back(std::move(written.file));
  manifest.tensors = std::move(written.tensors);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  manifest.sequence = std::max<int64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count(),
                                        readers.back().manifest().sequence + 1);
  manifest.header = header_of(readers);
  complete_step_folder(folder, std::move(manifest));
}

}  // namespace

Merged merge(std::span<const fs::path> paths, const fs::path& output, double decay) {
  TRAINER_CHECK(!paths.empty(), "merge() requires checkpoints");
  std::vector<std::pair<int64_t, fs::path>> folders;  // with their times
  for (const fs::path& path : paths) {
    fs::path folder = resolve(path);
    folders.emplace_back(read_manifest(folder).sequence, std::move(folder));
  }
  std::ranges::sort(folders);
  std::vector<Reader> readers;
  readers.reserve(folders.size());
  for (const auto& [time, folder] : folders) readers.emplace_back(folder);
  for (size_t i = 1; i < readers.size(); ++i) {
    require_same_model(readers.front(), readers[i]);
    for (size_t j = 0; j < i; ++j)
      if (std::error_code none; fs::equivalent(readers[i].folder(), readers[j].folder(), none))
        throw Error(Code::checkpoint, format("{}: named twice", readers[i].folder().string()));
  }
  const std::vector<double> counts = counts_of(readers, decay);
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  Merged done;
  for (const Reader& reader : readers) done.sources.push_back(reader.folder());
  for (const double count : counts) done.shares.push_back(count / total);
  write_new_folder(output, [&](const fs::path& folder) { write_step(readers, counts, folder, done); });
  return done;
}

}  // namespace trainer::checkpoint
