#pragma once
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace trainer::report {

/// A file to which records are appended, each completely or not at all. A failed write (disk full) never stops a run:
/// the first failure logs a warning, and later records are attempted nevertheless.
class RecordFile {
 public:
  /// Opens or creates the file. `flags`: additional open() flags. Throws Code::io naming the file.
  explicit RecordFile(std::filesystem::path path, int flags = 0);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  /// Makes one system call, so that a crash tears at most the last record.
  void write(std::string_view record);
  /// Returns the number of records lost so far.
  int64_t lost() const { return lost_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t size_ = 0;  // bytes of complete records
  int64_t lost_ = 0;
};

}  // namespace trainer::report
