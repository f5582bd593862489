#pragma once
// Files of ascending token positions next to a token file X.bin: 8 bytes that name the kind, a count n (uint64), then
// positions (uint64), all little-endian.
//   X.docs   documents: n + 1 positions, from 0 to the token count; document i is [position i, position i + 1);
//   X.spans  runs of counted tokens: 2n positions; run i is [position 2i, position 2i + 1).
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/files.h"

namespace trainer::data {

struct PositionsKind {
  std::string_view magic;
  const char *extension, *name, *unit;
  const char* remedy;  // for a file that is none
  bool begins_at_0;    // a first position 0 that is not written by append()
  int64_t per_unit;    // positions of each unit
};
inline constexpr PositionsKind kDocuments = {
    "trndocs1", ".docs", "document index", "documents", "delete it to train without an index", true, 1};
inline constexpr PositionsKind kSpans = {"trnspan1", ".spans", "list of loss spans", "spans", "tokenize again",
                                         false,      2};

/// Returns X.docs or X.spans for X.bin.
std::filesystem::path positions_path(const std::filesystem::path& token_file, const PositionsKind& kind);
/// Returns the bytes before the positions.
std::string positions_header(const PositionsKind& kind, int64_t units);

/// Reads numbers of a file through a block around the last one, so that a search in it takes few calls of the system.
class NumberReader {
 public:
  explicit NumberReader(const InputFile& file) : file_(file) {}

  template <typename T>
  T at(int64_t offset) const {
    const std::lock_guard lock(mutex_);
    constexpr auto bytes = static_cast<int64_t>(sizeof(T));
    if (offset < begin_ || offset + bytes > end_) load(offset, bytes);
    T value;
    std::memcpy(&value, block_.data() + (offset - begin_), sizeof value);
    return value;
  }

 private:
  void load(int64_t offset, int64_t bytes) const;

  const InputFile& file_;
  mutable std::mutex mutex_;  // guards the block
  mutable std::array<std::byte, 8192> block_;
  mutable int64_t begin_ = 0, end_ = 0;
};

/// A binary search in numbers that are read from a file.
class PositionSearch {
 public:
  /// Returns the first i in [0, count) with at(i) >= value; count if there is none. Thread-safe. Each call must have
  /// the same `count` and `at`.
  template <typename At>
  int64_t first_from(int64_t value, int64_t count, At&& at) const {
    int64_t first = 0, last = count;
    for (size_t step = 1; first < last;) {
      const int64_t middle = first + (last - first) / 2;
      std::atomic<int64_t>* const known = step < first_steps_.size() ? &first_steps_[step] : nullptr;
      int64_t found = known == nullptr ? 0 : known->load(std::memory_order_relaxed);
      if (found == 0) {
        found = at(middle);
        if (known != nullptr) known->store(found, std::memory_order_relaxed);
      }
      const bool right = found < value;
      step = 2 * step + right;
      (right ? first : last) = middle + right;
    }
    return first;
  }

 private:
  // Numbers that the first steps of a search compare with, numbered as in a heap; 0: not known. Later steps read one
  // block.
  mutable std::array<std::atomic<int64_t>, 1024> first_steps_{};
};

/// Reads a file of positions.
class PositionsFile {
 public:
  /// Throws Code::data, naming file and offset, when the file is missing, of a different kind or truncated.
  PositionsFile(const std::filesystem::path& path, const PositionsKind& kind, int64_t tokens);

  const InputFile& file() const { return file_; }
  int64_t units() const { return units_; }
  /// Returns position n, counted from 0. Throws Code::data, naming file and offset, when it is not in [0, tokens].
  int64_t at(int64_t n) const;
  /// Throws Code::data naming the file, the place of position n, and the reason.
  [[noreturn]] void refuse(int64_t n, const std::string& reason) const;

 private:
  int64_t offset_of(int64_t n) const;

  const InputFile file_;
  const NumberReader numbers_{file_};
  const PositionsKind& kind_;
  const int64_t tokens_;
  int64_t units_ = 0;
};

/// Writes a file of positions in parts, so that it can be resumed.
class PositionsWriter {
 public:
  PositionsWriter(const std::filesystem::path& path, const PositionsKind& kind);

  /// True if the file has at least this many units; their header may be missing.
  bool has(int64_t units) const { return file_.size() >= bytes_of(units); }
  /// Discards what follows the first `units`; append() continues there.
  void resume_at(int64_t units);
  /// Appends positions, each increased by `base`. The number of positions must be a multiple of the kind's per_unit.
  void append(std::vector<int64_t> positions, int64_t base);
  void sync() { file_.sync(); }
  /// Writes the header, and waits until the file is on disk.
  void finish();

 private:
  int64_t bytes_of(int64_t units) const;

  const PositionsKind& kind_;
  File file_;
  int64_t units_ = 0;
};

}  // namespace trainer::data
