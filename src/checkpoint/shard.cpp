#include "checkpoint/shard.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"
#include "tensor/host_copy.h"

namespace trainer::checkpoint {

namespace fs = std::filesystem;

namespace {

/// Checks the caller's slice, and returns its runs in ascending global order.
std::vector<mesh::Run> sorted_runs(const TensorSlice& slice) {
  const Tensor& local = slice.local;
  const int64_t extent = local.rows() == 0 ? 0 : (local.rows() - 1) * local.ld() + local.cols();
  std::vector<mesh::Run> runs;
  runs.reserve(slice.runs.size());
  for (const mesh::Run& run : slice.runs) {
    TRAINER_CHECK(run.global >= 0 && run.length >= 0 && run.global + run.length <= slice.shape.count(),
                  "{}: run {}+{} of a tensor {}", slice.name, run.global, run.length, to_string(slice.shape));
    const int64_t last = run.local + (run.length - 1) * run.stride;
    TRAINER_CHECK(run.local >= 0 && run.stride >= 1 && last < extent, "{}: run from {} to {} of {} local elements",
                  slice.name, run.local, last, extent);
    if (run.length > 0) runs.push_back(run);
  }
  std::sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) { return a.global < b.global; });
  for (size_t i = 1; i < runs.size(); ++i) {
    TRAINER_CHECK(runs[i - 1].global + runs[i - 1].length <= runs[i].global, "{}: two runs hold element {}", slice.name,
                  runs[i].global);
  }
  return runs;
}

bool is_on_host(const TensorSlice& slice) {
  return slice.device == nullptr || slice.device->kind() == device::DeviceKind::cpu;
}

int64_t count_of(const TensorSlice& slice) {
  int64_t elements = 0;
  for (const mesh::Run& run : slice.runs) elements += run.length;
  return elements;
}

/// Copies elements of `size` bytes between strided arrays, with strides of `from_step` and `to_step` bytes.
void copy_elements(std::byte* to, int64_t to_step, const std::byte* from, int64_t from_step, int64_t size,
                   int64_t count) {
  if (to_step == size && from_step == size) {
    std::memcpy(to, from, static_cast<size_t>(count * size));
    return;
  }
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * to_step, from + i * from_step, static_cast<size_t>(size));
}

/// Copies elements between host arrays of two compute types, with a stride in `to`; rounds as ops::Cast does.
void convert_elements(DType to_type, std::byte* to, int64_t step, DType from_type, const std::byte* from,
                      int64_t count) {
  with_type(to_type, [&](auto target) {
    with_type(from_type, [&](auto source) {
      using To = decltype(target);
      using From = decltype(source);
      if constexpr (std::is_floating_point_v<From> && !std::is_integral_v<To>) {
        To* const out = reinterpret_cast<To*>(to);
        const From* const in = reinterpret_cast<const From*>(from);
        for (int64_t i = 0; i < count; ++i) out[i * step] = static_cast<To>(in[i]);
      } else {
        TRAINER_CHECK(false, "no conversion from {} to {}", name_of(from_type), name_of(to_type));
      }
    });
  });
}

/// A host copy of the range of `local` that a slice's runs cover: `local` may be far larger, such as all parameters of
/// a transformer block.
class OnHost {
 public:
  OnHost(const TensorSlice& slice, const std::vector<mesh::Run>& runs) : data_(slice.local.data) {
    if (is_on_host(slice) || runs.empty()) return;
    int64_t first = std::numeric_limits<int64_t>::max(), end = 0;
    for (const mesh::Run& run : runs) {
      first = std::min(first, run.local);
      end = std::max(end, run.local + (run.length - 1) * run.stride + 1);
    }
    const int64_t size = size_of(slice.local.dtype);
    data_ = copy_.get(*slice.device, {slice.local.data + first * size, {end - first}, slice.local.dtype}).data -
            first * size;
  }
  /// Returns the address of element 0 of `local`, which may be outside the copy.
  std::byte* data() const { return data_; }
  void put() { copy_.put(); }

 private:
  HostCopy copy_;
  std::byte* data_;
};

/// Packs the bytes of consecutive runs into chunks. A chunk within a single contiguous run is a view of the tensor
/// itself.
class Packer {
 public:
  Packer(const TensorSlice& slice, std::vector<mesh::Run> runs, std::span<std::byte> buffer)
      : local_(slice, runs),
        data_(local_.data()),
        size_(size_of(slice.local.dtype)),
        runs_(std::move(runs)),
        buffer_(buffer) {}

  /// Returns the next `bytes` bytes (at most the buffer's).
  std::span<const std::byte> next(int64_t bytes) {
    for (int64_t filled = 0; filled < bytes;) {
      const mesh::Run run = runs_[run_];
      const std::byte* source = data_ + run.local * size_ + done_ * run.stride;
      const int64_t take = std::min(bytes - filled, run.length * size_ - done_);
      done_ += take;
      if (done_ == run.length * size_) {
        ++run_;
        done_ = 0;
      }
      if (take == bytes && run.stride == 1) return {source, static_cast<size_t>(bytes)};
      copy_elements(buffer_.data() + filled, size_, source, run.stride * size_, size_, take / size_);
      filled += take;
    }
    return buffer_.first(static_cast<size_t>(bytes));
  }

 private:
  OnHost local_;
  const std::byte* data_;
  int64_t size_;
  std::vector<mesh::Run> runs_;
  std::span<std::byte> buffer_;
  size_t run_ = 0;
  int64_t done_ = 0;  // bytes of the current run already returned
};

/// Walks the stored runs of a piece and the requested runs of a slice together, chunk by chunk.
class Intersection {
 public:
  struct Copy {
    // Offsets in the chunk and in local storage; the number of elements; their stride in local storage. In elements.
    int64_t from, to, count, step;
  };
  Intersection(const StoredPart& piece, const std::vector<mesh::Run>& requested, int64_t size)
      : groups_(piece.runs), requested_(requested), size_(size) {}

  /// Returns the copies to make from the next `bytes` bytes of the piece.
  const std::vector<Copy>& next(int64_t bytes) {
    copies_.clear();
    const int64_t elements = bytes / size_;
    for (int64_t position = 0; position < elements;) {
      const RunGroup& group = groups_[group_];
      const int64_t take = std::min(elements - position, group.length - done_);
      add(group.global + index_ * group.stride + done_, take, position);
      position += take;
      done_ += take;
      if (done_ < group.length) continue;
      done_ = 0;
      if (++index_ == group.count) {
        ++group_;
        index_ = 0;
      }
    }
    return copies_;
  }

 private:
  void add(int64_t begin, int64_t length, int64_t position) {
    while (requested_next_ < requested_.size() && end_of(requested_[requested_next_]) <= begin) ++requested_next_;
    for (size_t w = requested_next_; w < requested_.size() && requested_[w].global < begin + length; ++w) {
      const int64_t from = std::max(begin, requested_[w].global), to = std::min(begin + length, end_of(requested_[w]));
      const mesh::Run& run = requested_[w];
      copies_.push_back({position + from - begin, run.local + (from - run.global) * run.stride, to - from, run.stride});
    }
  }
  static int64_t end_of(const mesh::Run& run) { return run.global + run.length; }

  const std::vector<RunGroup>& groups_;
  const std::vector<mesh::Run>& requested_;
  int64_t size_;
  std::vector<Copy> copies_;
  size_t group_ = 0, requested_next_ = 0;
  int64_t index_ = 0, done_ = 0;  // index of the run in its group, and elements of the run already visited
};

}  // namespace

ShardWriter::ShardWriter(const fs::path& path, int64_t shard, SystemCalls& calls)
    : file_(File::create(path, calls)), shard_(shard), written_{{path.filename().string(), 0, {}}, {}} {}

void ShardWriter::add(const TensorSlice& slice) {
  static constexpr std::array<std::byte, kAlignment> kZeros{};
  std::vector<mesh::Run> runs = sorted_runs(slice);
  if (runs.empty()) return;
  int64_t& end = written_.file.bytes;
  file_.write(std::span(kZeros).first(static_cast<size_t>(round_up(end, kAlignment) - end)));
  StoredPart piece{shard_, round_up(end, kAlignment), group_runs(runs), {}};
  const int64_t bytes = piece.elements() * size_of(slice.local.dtype);
  if (const auto needed = static_cast<size_t>(std::min(bytes, kChunkBytes)); buffer_.size() < needed)
    buffer_.resize(needed);
  Packer packer(slice, std::move(runs), buffer_);
  for (int64_t done = 0; done < bytes; done += kChunkBytes) {
    const std::span<const std::byte> chunk = packer.next(std::min(kChunkBytes, bytes - done));
    piece.chunks.push_back(checksum_of(chunk));
    file_.write(chunk);
  }
  end = piece.offset + bytes;
  written_.tensors.push_back({slice.name, slice.local.dtype, slice.shape, {std::move(piece)}});
}

WrittenShard ShardWriter::finish() {
  file_.sync();
  file_.close();
  return std::move(written_);
}

WrittenShard write_shard(const fs::path& path, int64_t shard, std::span<const TensorSlice> slices, SystemCalls& calls) {
  ShardWriter writer(path, shard, calls);
  for (const TensorSlice& slice : slices) writer.add(slice);
  return writer.finish();
}

std::vector<TensorSlice> copy_to_host(device::ThreadPool& pool, std::span<const TensorSlice> slices,
                                      std::vector<std::byte>& memory) {
  int64_t bytes = 0;
  std::vector<TensorSlice> copies;
  std::vector<int64_t> offsets;
  copies.reserve(slices.size());
  for (const TensorSlice& slice : slices) {
    const int64_t elements = count_of(slice);
    copies.push_back({slice.name, slice.shape, {nullptr, {elements}, slice.local.dtype, 0}, {}});
    offsets.push_back(std::exchange(bytes, bytes + elements * size_of(slice.local.dtype)));
  }
  memory.resize(static_cast<size_t>(bytes));
  const auto copy = [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    const TensorSlice& slice = slices[at];
    std::vector<mesh::Run> runs = sorted_runs(slice);
    const OnHost local(slice, runs);
    const int64_t size = size_of(slice.local.dtype);
    std::byte* const to = memory.data() + offsets[at];
    int64_t elements = 0;
    for (mesh::Run& run : runs) {
      copy_elements(to + elements * size, size, local.data() + run.local * size, run.stride * size, size, run.length);
      run = {run.global, std::exchange(elements, elements + run.length), run.length};
    }
    copies[at].local.data = to;
    copies[at].runs = std::move(runs);
  };
  const int64_t tasks = static_cast<int64_t>(slices.size());
  if (std::ranges::all_of(slices, is_on_host)) {
    pool.parallel_for(tasks, copy);
  } else {  // only this thread has chosen the GPU
    for (int64_t i = 0; i < tasks; ++i) copy(i);
  }
  std::erase_if(copies, [](const TensorSlice& slice) { return slice.runs.empty(); });
  return copies;
}

int64_t bytes_of_copies(std::span<const TensorSlice> slices) {
  int64_t bytes = 0;
  for (const TensorSlice& slice : slices)
    bytes += count_of(slice) * size_of(slice.local.dtype) + static_cast<int64_t>(slice.runs.size() * sizeof(mesh::Run));
  return bytes;
}

ShardReader::ShardReader(const fs::path& folder, const Manifest& manifest) : folder_(folder), manifest_(manifest) {
  files_.resize(manifest.shards.size());
}

const File& ShardReader::file(int64_t shard) {
  std::optional<File>& file = files_[static_cast<size_t>(shard)];
  if (!file) file.emplace(File::open(folder_ / manifest_.shards[static_cast<size_t>(shard)].name));
  return *file;
}

std::optional<std::span<const std::byte>> ShardReader::chunk(const StoredPart& piece, int64_t bytes, int64_t index) {
  const int64_t begin = index * manifest_.chunk_bytes;
  const size_t length = static_cast<size_t>(std::min(manifest_.chunk_bytes, bytes - begin));
  if (buffer_.size() < length) buffer_.resize(length);
  const std::span<std::byte> target(buffer_.data(), length);
  file(piece.shard).read(piece.offset + begin, target);
  if (checksum_of(target) != piece.chunks[static_cast<size_t>(index)]) return std::nullopt;
  return target;
}

std::string ShardReader::damage(const StoredTensor& stored, const StoredPart& piece, int64_t index) const {
  const int64_t begin = index * manifest_.chunk_bytes;
  const int64_t end = std::min(begin + manifest_.chunk_bytes, piece.elements() * size_of(stored.dtype));
  return format(
      "{}: tensor {}: the checksum of bytes {} to {} differs; the file is corrupted or from a different checkpoint",
      (folder_ / manifest_.shards[static_cast<size_t>(piece.shard)].name).string(), stored.name, piece.offset + begin,
      piece.offset + end);
}

void ShardReader::fill(const TensorSlice& slice, const StoredTensor& stored) {
  const std::vector<mesh::Run> requested = sorted_runs(slice);
  OnHost local(slice, requested);
  const DType type = slice.local.dtype;
  const int64_t size = size_of(stored.dtype);
  for (const StoredPart& piece : stored.pieces) {
    const int64_t bytes = piece.elements() * size;
    Intersection intersection(piece, requested, size);
    for (size_t index = 0; index < piece.chunks.size(); ++index) {
      const int64_t begin = static_cast<int64_t>(index) * manifest_.chunk_bytes;
      const auto& copies = intersection.next(std::min(manifest_.chunk_bytes, bytes - begin));
      if (copies.empty()) continue;
      const auto data = chunk(piece, bytes, static_cast<int64_t>(index));
      if (!data) throw Damage(damage(stored, piece, static_cast<int64_t>(index)));
      for (const auto& copy : copies) {
        std::byte* const to = local.data() + copy.to * size_of(type);
        const std::byte* const from = data->data() + copy.from * size;
        if (type == stored.dtype)
          copy_elements(to, copy.step * size, from, size, size, copy.count);
        else
          convert_elements(type, to, copy.step, stored.dtype, from, copy.count);
      }
    }
  }
  local.put();
}

void ShardReader::verify(const StoredTensor& stored, const std::function<void(const std::string&)>& report) {
  for (const StoredPart& piece : stored.pieces) {
    const int64_t bytes = piece.elements() * size_of(stored.dtype);
    for (size_t index = 0; index < piece.chunks.size(); ++index) {
      if (!chunk(piece, bytes, static_cast<int64_t>(index))) {
        report(damage(stored, piece, static_cast<int64_t>(index)));
      }
    }
  }
}

void ShardReader::verify_padding(const std::function<void(const std::string&)>& report) {
  for (const StoredTensor& tensor : manifest_.tensors) {
    for (const StoredPart& piece : tensor.pieces) {
      const int64_t end = piece.offset + piece.elements() * size_of(tensor.dtype);
      const int64_t next =
          std::min(round_up(end, kAlignment), manifest_.shards[static_cast<size_t>(piece.shard)].bytes);
      std::vector<std::byte> padding(static_cast<size_t>(next - end));
      file(piece.shard).read(end, padding);
      if (std::any_of(padding.begin(), padding.end(), [](std::byte b) { return b != std::byte{0}; })) {
        report(format("{}: bytes {} to {}, between two tensors, are not zero", file(piece.shard).path().string(), end,
                      next));
      }
    }
  }
}

}  // namespace trainer::checkpoint
