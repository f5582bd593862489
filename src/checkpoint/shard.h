#pragma once
// Shard files contain the bytes of pieces. Tensors of any size are streamed through one chunk-sized buffer.
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/manifest.h"
#include "device/thread_pool.h"

namespace trainer::checkpoint {

struct WrittenShard {
  StoredFile file;
  std::vector<StoredTensor> tensors;  // each has a single piece
};

/// Writes slices consecutively into a new file. `shard` is the file's index in the manifest. The runs of a slice must
/// be disjoint and within the local and the global tensor.
class ShardWriter {
 public:
  ShardWriter(const std::filesystem::path& path, int64_t shard, SystemCalls& calls = system_calls());
  /// Writes a slice, whose memory may be reused afterwards.
  void add(const TensorSlice& slice);
  /// Syncs and closes the file.
  WrittenShard finish();

 private:
  File file_;
  int64_t shard_;
  WrittenShard written_;
  std::vector<std::byte> buffer_;
};
/// Writes all slices into one shard.
WrittenShard write_shard(const std::filesystem::path& path, int64_t shard, std::span<const TensorSlice> slices,
                         SystemCalls& calls = system_calls());

/// Copies the elements of slices into `memory`, which grows as needed, and returns slices of the copies. A shard
/// written from them has the same bytes. Each task of the pool copies a slice, unless a GPU
/// has some of them.
std::vector<TensorSlice> copy_to_host(device::ThreadPool& pool, std::span<const TensorSlice> slices,
                                      std::vector<std::byte>& memory);
/// Returns the memory for copies of slices: the elements, and the lists of their runs.
int64_t bytes_of_copies(std::span<const TensorSlice> slices);

/// Reads from the shards of one step folder; files are opened on first use.
class ShardReader {
 public:
  ShardReader(const std::filesystem::path& folder, const Manifest& manifest);

  /// Fills the runs of `slice` from `stored`, which has the same shape, and whose elements are converted if they are
  /// fp32 or fp64 and of a different compute type. Every chunk is verified before its bytes are copied; if a checksum
  /// differs, throws Damage with file, tensor and offset.
  void fill(const TensorSlice& slice, const StoredTensor& stored);

  /// Reads and verifies all chunks of a tensor; each mismatch goes to `report`.
  void verify(const StoredTensor& stored, const std::function<void(const std::string&)>& report);
  /// Verifies that the bytes between the end of a piece and the next multiple of kAlignment are zero if another piece
  /// follows.
  void verify_padding(const std::function<void(const std::string&)>& report);

 private:
  const File& file(int64_t shard);
  /// Reads chunk `index` of a piece into `buffer_`; returns an empty result if the checksum differs.
  std::optional<std::span<const std::byte>> chunk(const StoredPart& piece, int64_t bytes, int64_t index);
  std::string damage(const StoredTensor& stored, const StoredPart& piece, int64_t index) const;

  std::filesystem::path folder_;
  const Manifest& manifest_;
  std::vector<std::optional<File>> files_;
  std::vector<std::byte> buffer_;
};

}  // namespace trainer::checkpoint
