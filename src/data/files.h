#pragma once
// Plain files the way data needs them: locked, mapped, hashed.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/mapping_guard.h"

namespace trainer::data {

/// An open file descriptor, closed at the end of its life. Every failing call throws Code::io (reading missing input:
/// Code::data) with the path and the system's reason.
class File {
 public:
  static File open_to_read(const std::filesystem::path& path);
  /// Created when missing; the content is kept.
  static File open_to_write(const std::filesystem::path& path);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  int64_t size() const;
  /// Reads at most `bytes` at `offset`; fewer only at the end of the file.
  size_t read_at(int64_t offset, char* out, size_t bytes) const;
  void write_at(int64_t offset, std::string_view bytes);
  void truncate(int64_t bytes);
  void sync();
  /// Takes the exclusive advisory lock; false when another process holds it.
  bool try_lock();
  const std::filesystem::path& path() const { return path_; }

 private:
  File(std::filesystem::path path, int descriptor);
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// A file mapped read-only. An empty file has no bytes and no mapping. Where the file is cut short meanwhile, zeros are
/// read (see mapping_guard.h): what was read holds only if require_whole() passes afterwards.
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

/// XXH3-128 of bytes, of a file's content; 32 lower-case hexadecimal digits.
std::string hash_bytes(std::string_view bytes);
std::string hash_file(const std::filesystem::path& path);

}  // namespace trainer::data
