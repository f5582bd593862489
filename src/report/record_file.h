#pragma once
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace trainer::report {

/// A file to which records are appended, each completely or not at all. It never stops a run: a failure (disk full)
/// causes one warning, and later records are tried again.
class RecordFile {
 public:
  /// Opens or creates the file; `flags` are additional flags of open(). Throws Code::io naming the file.
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
  int64_t size_ = 0;  // of complete records
  int64_t lost_ = 0;
};

}  // namespace trainer::report
