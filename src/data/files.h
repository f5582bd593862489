#pragma once
// Plain files the way data needs them: mapped, hashed.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/file_io.h"
#include "data/mapping_guard.h"

namespace trainer::data {

/// A file mapped read-only. An empty file has no bytes and no mapping. Where the file is truncated meanwhile, zeros are
/// read (see mapping_guard.h): data that was read is valid only if require_whole() passes afterwards.
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
  /// Throws Code::data when a read met a page that the file has lost, or with `ask` when the file has become shorter.
  /// The message names the file and its sizes.
  void require_whole(bool ask = false) const {
    if (guard_ && (ask ? guard_->is_cut_short() : guard_->has_lost_page())) refuse_cut();
  }
  /// Asks the system to read [offset, offset + bytes) ahead.
  void will_need(int64_t offset, int64_t bytes) const;

 private:
  [[noreturn]] void refuse_cut() const;

  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
  std::optional<MappingGuard> guard_;
};

/// The whole file. Throws Code::data when it cannot be read.
std::string read_file(const std::filesystem::path& path);

/// XXH3-128 of a file's content; 32 lower-case hexadecimal digits.
std::string hash_file(const std::filesystem::path& path);

}  // namespace trainer::data
