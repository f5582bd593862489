#pragma once
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace trainer::report {

/// A file to which records are appended, each completely or not at all. A failed write (disk full) never stops a run:
/// the first failure logs a warning, and later records are attempted nevertheless. If the file is deleted meanwhile, a
/// warning is logged and a new file is begun.
class RecordFile {
 public:
  /// Opens or creates the file. `flags`: additional open() flags. Throws Code::io naming the file.
  explicit RecordFile(std::filesystem::path path, int flags = 0);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  /// Makes one system call, so that a crash tears at most the last record.
  void write(std::string_view record);
  /// Returns the number of records lost so far, those written to a deleted file included.
  int64_t lost() const { return lost_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  bool open_file();
  void replace_if_deleted();

  const std::filesystem::path path_;
  const int flags_;
  int descriptor_ = -1;
  int64_t size_ = 0;     // bytes of complete records
  int64_t written_ = 0;  // records in this file
  int64_t lost_ = 0;
};

}  // namespace trainer::report
