#include "checkpoint/strip.h"

#include <vector>

#include "base/error.h"
#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"
#include "checkpoint/shard.h"
#include "checkpoint/step_files.h"

namespace trainer::checkpoint {

namespace fs = std::filesystem;

namespace {

// Size limit of a shard, which is held in memory; a larger tensor has its own shard.
constexpr int64_t kShardBytes = int64_t{1} << 30;

/// Reads tensors and writes them as shards of at most kShardBytes.
class Copier {
 public:
  Copier(const Reader& reader, fs::path folder)
      : reader_(reader.folder(), reader.manifest()), folder_(std::move(folder)) {}

  void add(const StoredTensor& tensor) {
    if (!slices_.empty() && held_ + tensor.bytes() > kShardBytes) flush();
    std::vector<std::byte>& memory = memory_.emplace_back(static_cast<size_t>(tensor.bytes()));
    slices_.push_back(tensor.slice(memory.data()));
    reader_.fill(slices_.back(), tensor);
    held_ += tensor.bytes();
  }
  void flush() {
    if (slices_.empty()) return;
    const auto index = static_cast<int64_t>(manifest_.shards.size());
    WrittenShard shard = write_shard(folder_ / format("weights-{:05d}.shard", index), index, slices_);
    manifest_.shards.push_back(std::move(shard.file));
    for (StoredTensor& tensor : shard.tensors) manifest_.tensors.push_back(std::move(tensor));
    slices_.clear();
    memory_.clear();
    held_ = 0;
  }
  Manifest& manifest() { return manifest_; }

 private:
  ShardReader reader_;
  fs::path folder_;
  Manifest manifest_;
  std::vector<TensorSlice> slices_;
  std::vector<std::vector<std::byte>> memory_;
  int64_t held_ = 0;
};

void write_step(const Reader& reader, const fs::path& folder, Stripped& done) {
  Copier copier(reader, folder);
  for (const StoredTensor& tensor : reader.manifest().tensors) {
    if (!is_weight(tensor.name)) continue;
    copier.add(tensor);
    ++done.tensors;
    done.bytes += tensor.bytes();
  }
  copier.flush();
  Manifest& manifest = copier.manifest();
  manifest.sequence = reader.manifest().sequence;
  manifest.header = reader.header();
  complete_step_folder(folder, std::move(manifest));
}

}  // namespace

Stripped strip(const fs::path& path, const fs::path& output) {
  const Reader reader(path);
  Stripped done{reader.folder(), 0, 0};
  write_new_folder(output, [&](const fs::path& folder) { write_step(reader, folder, done); });
  return done;
}

}  // namespace trainer::checkpoint
