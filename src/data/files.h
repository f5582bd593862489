#pragma once
// Plain files for data: mapping and hashing.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/file_io.h"
#include "data/mapping_guard.h"

namespace trainer::data {

/// A file mapped read-only. An empty file has no bytes and no mapping. If the file is truncated while it is mapped,
/// reads return zeros (see mapping_guard.h): data that was read is valid only if require_whole() succeeds afterwards.
class MappedFile {
 public:
  /// Throws Code::data when the file cannot be opened, Code::io when it cannot be mapped.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }
  /// Throws Code::data if a read touched a page that the file has lost, or, with `ask`, if the file has become shorter.
  /// The message names the file and its sizes.
  void require_whole(bool ask = false) const {
    if (guard_ && (ask ? guard_->is_cut_short() : guard_->has_lost_page())) refuse_cut();
  }
  /// Asks the system to read ahead [offset, offset + bytes).
  void will_need(int64_t offset, int64_t bytes) const;

 private:
  [[noreturn]] void refuse_cut() const;

  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
  std::optional<MappingGuard> guard_;
};

/// Returns the whole file. Throws Code::data when it cannot be read or is a pointer of Git LFS.
std::string read_file(const std::filesystem::path& path);

/// Returns the XXH3-128 of a file's content as 32 lower-case hexadecimal digits.
std::string hash_file(const std::filesystem::path& path);

}  // namespace trainer::data
