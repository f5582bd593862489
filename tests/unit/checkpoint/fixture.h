#pragma once
// Helpers of the checkpoint tests: tensors in random layouts, system calls that fail on demand.
#include <algorithm>
#include <cerrno>
#include <functional>
#include <optional>
#include <random>

#include "base/file_io.h"
#include "checkpoint/folder.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "rigs/files.h"
#include "rigs/messages.h"

namespace trainer::checkpoint {

namespace fs = std::filesystem;
using Random = std::mt19937_64;

inline int64_t pick(Random& random, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random);
}

using tests::content_of;
using tests::error_of;
using tests::expect_error;
using tests::expect_parts;
using tests::TempFolder;
using tests::Warnings;
using tests::write;

struct Spec {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
};

/// Returns byte `b` of element `index` of a tensor, which loading a checkpoint must restore.
inline std::byte expected_byte(const std::string& name, uint64_t seed, int64_t index, int64_t b) {
  uint64_t x = std::hash<std::string>{}(name) ^ (seed * 0x9E3779B97F4A7C15u) ^ (static_cast<uint64_t>(index) << 3);
  x = (x ^ (x >> 31)) * 0xD6E8FEB86659FD93u;
  return static_cast<std::byte>((x ^ (x >> 32)) >> (8 * b));
}

/// Tensors, each with its own local storage.
class Tensors {
 public:
  /// Cuts each tensor into random runs. This rank stores one in `ranks` of them, in random order, at random positions.
  Tensors(const std::vector<Spec>& specs, Random& source, int64_t rank = 0, int64_t ranks = 1) {
    for (const Spec& spec : specs) {
      Random random(source());  // one seed per tensor: ranks with equal sources agree on the cuts
      TensorSlice slice{spec.name, spec.shape, {}, {}};
      const int64_t count = spec.shape.count(), cuts = pick(random, 0, std::min<int64_t>(count - 1, 12));
      std::vector<int64_t> ends{count};
      for (int64_t cut = 0; cut < cuts; ++cut) ends.push_back(pick(random, 0, count));
      std::sort(ends.begin(), ends.end());
      int64_t begin = 0, index = 0;
      for (const int64_t end : ends) {
        if (end > begin && index++ % ranks == rank) slice.runs.push_back({begin, 0, end - begin});
        begin = end;
      }
      std::shuffle(slice.runs.begin(), slice.runs.end(), random);
      int64_t local = 0;
      for (mesh::Run& run : slice.runs) {
        run.local = local += pick(random, 0, 3);
        if (pick(random, 0, 3) == 0) run.stride = pick(random, 2, 4);  // as in a transposed matrix
        local += (run.length - 1) * run.stride + 1;
      }
      add(std::move(slice), spec.dtype, local + pick(random, 1, 3));
    }
  }
  /// Whole tensors, row-major.
  explicit Tensors(const std::vector<Spec>& specs) {
    for (const Spec& spec : specs) {
      add({spec.name, spec.shape, {}, {{0, 0, spec.shape.count()}}}, spec.dtype, spec.shape.count());
    }
  }

  void fill(uint64_t seed) {
    for_each([&](std::byte& byte, const std::string& name, int64_t index, int64_t b) {
      byte = expected_byte(name, seed, index, b);
    });
  }
  /// Returns the first byte that differs from fill(seed) as text; empty if none does.
  std::string difference(uint64_t seed) const {
    std::string found;
    const_cast<Tensors*>(this)->for_each([&](std::byte& byte, const std::string& name, int64_t index, int64_t b) {
      if (found.empty() && byte != expected_byte(name, seed, index, b)) {
        found = format("{} element {} byte {}", name, index, b);
      }
    });
    return found;
  }
  std::vector<TensorSlice> slices;

 private:
  void add(TensorSlice slice, DType dtype, int64_t elements) {
    memory_.emplace_back(static_cast<size_t>(elements * size_of(dtype)), std::byte{0xEE});
    slice.local = {memory_.back().data(), {elements}, dtype, 0};
    slices.push_back(std::move(slice));
  }
  template <typename Visit>
  void for_each(Visit visit) {
    for (const TensorSlice& slice : slices) {
      const int64_t size = size_of(slice.local.dtype);
      for (const mesh::Run& run : slice.runs) {
        for (int64_t i = 0; i < run.length; ++i) {
          for (int64_t b = 0; b < size; ++b) {
            visit(slice.local.data[(run.local + i * run.stride) * size + b], slice.name, run.global + i, b);
          }
        }
      }
    }
  }
  std::vector<std::vector<std::byte>> memory_;
};

inline std::vector<Spec> small_model() {
  return {{"wte", {13, 6}},
          {"wte#m", {13, 6}},
          {"wte#v", {13, 6}},
          {"blocks.0.attn.q.weight", {6, 6}},
          {"blocks.0.norm", {7}},
          {"half", {3, 5}, DType::bf16},
          {"double", {2, 3, 2}, DType::f64}};
}

inline Snapshot snapshot_of(const Tensors& tensors, int64_t step) {
  Snapshot snapshot;
  snapshot.state = {step, step - 1, 12 * step, 12 * 256 * step, 3.25, step - 1};
  snapshot.config_toml = format("[run]\nname = \"step {}\"\n", step);
  snapshot.tokenizer = std::string("\0model\xff", 7);
  snapshot.tokenizer_hash = "abc";
  snapshot.data_hash = "def";
  snapshot.gemm_tuning_hash = "ghi";
  snapshot.model_keys = {{"n_layer", "2"}, {"d_model", "6"}};
  snapshot.compute = "fp32";
  snapshot.tensors = tensors.slices;
  return snapshot;
}

/// Does not wait for the disk: tests of kills and failures depend only on the order of the calls.
class FastCalls : public SystemCalls {
 public:
  int fsync(int) override { return 0; }
};
inline SystemCalls& fast_calls() {
  static FastCalls calls;
  return calls;
}

/// Saves the small model, filled with `seed` or else the step; returns the step's folder.
inline fs::path save_step(const fs::path& folder, int64_t step, std::optional<uint64_t> seed = {},
                          SystemCalls& calls = fast_calls(), Retention retention = {}, bool background = false) {
  Tensors tensors(small_model());
  tensors.fill(seed.value_or(static_cast<uint64_t>(step)));
  const Snapshot snapshot = snapshot_of(tensors, step);
  CheckpointStore store(folder, retention, calls);
  store.begin(snapshot, background);
  while (!store.proceed()) {
  }
  return store.folder() / step_name(step);
}

/// Loads the newest checkpoint of `folder` and returns its step, after comparing each tensor with fill(step).
inline int64_t load_newest(const fs::path& folder, const std::vector<Spec>& specs) {
  const Reader reader(folder);
  Tensors tensors(specs);
  reader.load(tensors.slices, {});
  const int64_t step = reader.header().state.step;
  const std::string difference = tensors.difference(static_cast<uint64_t>(step));
  if (!difference.empty()) throw Error(Code::internal, "loaded, but differs: " + difference);
  return step;
}

inline std::vector<std::string> hidden_names(const fs::path& folder) {
  std::vector<std::string> names = names_in(folder);
  std::erase_if(names, [](const std::string& name) { return name[0] != '.'; });
  return names;
}

/// Counts the system calls of a save and injects a fault at call `at`.
class FaultyCalls : public FastCalls {
 public:
  enum class Fault { none, kill, torn_kill, error, error_from_here, short_write };
  explicit FaultyCalls(Fault fault = Fault::none, int64_t at = -1, int error = EIO)
      : fault_(fault), at_(at), error_(error) {}

  int64_t calls() const { return calls_; }
  /// The system call that failed.
  const std::string& victim() const { return victim_; }

  int open(const char* path, int flags, mode_t mode) override {
    return hit("open") ? -1 : SystemCalls::open(path, flags, mode);
  }
  ssize_t write(int fd, const void* data, size_t bytes) override {
    const bool now = calls_ == at_;
    if (now && (fault_ == Fault::short_write || fault_ == Fault::torn_kill)) {
      const ssize_t written = SystemCalls::write(fd, data, (bytes + 1) / 2);
      if (fault_ == Fault::torn_kill) ::_exit(0);
      ++calls_;
      return written;
    }
    return hit("write", true) ? -1 : SystemCalls::write(fd, data, bytes);
  }
  ssize_t pread(int fd, void* data, size_t bytes, int64_t offset) override {
    return hit("pread") ? -1 : SystemCalls::pread(fd, data, bytes, offset);
  }
  int fsync(int fd) override { return hit("fsync") ? -1 : FastCalls::fsync(fd); }
  int close(int fd) override {
    const bool failed = hit("close");
    const int error = errno, result = SystemCalls::close(fd);
    errno = error;
    return failed ? -1 : result;
  }
  int mkdir(const char* path, mode_t mode) override { return hit("mkdir") ? -1 : SystemCalls::mkdir(path, mode); }
  int rename(const char* from, const char* to) override { return hit("rename") ? -1 : SystemCalls::rename(from, to); }
  int exchange(const char* one, const char* other) override {
    if (without_exchange) {
      errno = EINVAL;
      return -1;
    }
    return hit("exchange") ? -1 : SystemCalls::exchange(one, other);
  }
  int unlink(const char* path) override { return hit("unlink") ? -1 : SystemCalls::unlink(path); }
  int rmdir(const char* path) override { return hit("rmdir") ? -1 : SystemCalls::rmdir(path); }

  bool without_exchange = false;

 private:
  bool hit(const char* operation, bool writes = false) {
    const int64_t index = calls_++;
    const bool later = fault_ == Fault::error_from_here && writes && index > at_;
    if (index != at_ && !later) return false;
    if (fault_ == Fault::kill || fault_ == Fault::torn_kill) ::_exit(0);
    if (fault_ == Fault::error_from_here && !writes) return false;
    if (fault_ != Fault::error && fault_ != Fault::error_from_here) return false;
    victim_ = operation;
    errno = error_;
    return true;
  }
  Fault fault_;
  int64_t at_;
  int error_;
  int64_t calls_ = 0;
  std::string victim_;
};

}  // namespace trainer::checkpoint
