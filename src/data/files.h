#pragma once
// Plain files for data: reading at any offset, and hashing.
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "base/file_io.h"

namespace trainer::data {

/// A file that stays open while parts of it are read.
class InputFile {
 public:
  /// Throws Code::data when the file cannot be opened. Raises the process's limit on open files as far as it may, since
  /// a run may have thousands of them.
  explicit InputFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  /// Returns the bytes that the file had when it was opened.
  int64_t size() const { return size_; }
  /// Fills `bytes` with those at `offset`, which the file had when it was opened. Throws Code::data naming the file
  /// when it was truncated since, or cannot be read. Thread-safe.
  void read(int64_t offset, std::span<std::byte> bytes) const;
  /// True if the file has not become shorter since it was opened. Queries the system.
  bool is_whole() const { return file_.size() >= size_; }
  /// Throws Code::data, naming the file and its sizes, if it has.
  void require_whole() const;
  /// Asks the system to read ahead [offset, offset + bytes).
  void will_need(int64_t offset, int64_t bytes) const;

 private:
  Error cut_short() const;

  File file_;
  int64_t size_;
};

/// Returns the whole file. Throws Code::data when it cannot be read or is a pointer of Git LFS.
std::string read_file(const std::filesystem::path& path);

/// Returns the XXH3-128 of a file's content as 32 lower-case hexadecimal digits.
std::string hash_file(const std::filesystem::path& path);

}  // namespace trainer::data
