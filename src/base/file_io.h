#pragma once
// File I/O whose error messages include a remedy. All system calls that save a checkpoint go through SystemCalls, so
// that a test can make the Nth call fail, transfer less or stop. Interrupted calls (EINTR) are retried and short
// transfers are completed here.
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace trainer {

/// Retries a system call for as long as signals interrupt it.
template <typename Call>
auto uninterrupted(Call call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

/// Throws an error with path, operation, the system's reason and the remedy.
[[noreturn]] void fail_to(const char* operation, const std::filesystem::path& path, int error, Code code = Code::io);

/// The kernel's calls, with its conventions: a negative result and errno.
class SystemCalls {
 public:
  virtual ~SystemCalls() = default;
  virtual int open(const char* path, int flags, mode_t mode);
  virtual ssize_t write(int fd, const void* data, size_t bytes);
  virtual ssize_t pread(int fd, void* data, size_t bytes, int64_t offset);
  virtual int fsync(int fd);
  virtual int close(int fd);
  virtual int mkdir(const char* path, mode_t mode);
  virtual int rename(const char* from, const char* to);
  /// Swaps two names atomically. Not every file system supports it.
  virtual int exchange(const char* one, const char* other);
  virtual int unlink(const char* path);
  virtual int rmdir(const char* path);
};
SystemCalls& system_calls();

/// An open file. All functions throw Code::io, or Code::checkpoint for a missing or truncated file that is read. The
/// message contains the path, the operation, the system's reason and the remedy.
class File {
 public:
  /// Creates a file for writing; the name must not exist.
  static File create(const std::filesystem::path& path, SystemCalls& calls = system_calls());
  /// Opens a file for reading and writing. Creates it if it is missing; otherwise keeps its content.
  static File open_to_write(const std::filesystem::path& path);
  /// Creates or empties a file for writing; its errors name `shown`.
  static File overwrite(const std::filesystem::path& path, const std::filesystem::path& shown);
  /// Opens an existing file for reading.
  static File open(const std::filesystem::path& path, SystemCalls& calls = system_calls());
  /// Opens an existing regular file for reading. Throws Code::data.
  static File open_input(const std::filesystem::path& path);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&&) = delete;

  /// Appends all of `bytes`.
  void write(std::span<const std::byte> bytes);
  void write_at(int64_t offset, std::string_view bytes);
  /// Fills `bytes`, beginning at byte `offset`.
  void read(int64_t offset, std::span<std::byte> bytes) const;
  /// Reads at most `bytes` bytes at `offset`; fewer only at the end of the file.
  size_t read_at(int64_t offset, void* out, size_t bytes) const;
  int64_t size() const;
  void truncate(int64_t bytes);
  /// Makes data and size durable.
  void sync();
  void close();
  int descriptor() const { return fd_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  File(SystemCalls& calls, std::filesystem::path path, int fd) : calls_(calls), path_(std::move(path)), fd_(fd) {}

  SystemCalls& calls_;
  std::filesystem::path path_;
  int fd_;
};

/// Writes a new file with these bytes and syncs it.
void write_file(const std::filesystem::path& path, std::string_view bytes, SystemCalls& calls = system_calls());
/// Returns all bytes of a file of at most `limit` bytes.
std::string read_file(const std::filesystem::path& path, int64_t limit, SystemCalls& calls = system_calls());
/// Makes the creation, renaming and removal of names in the folder durable.
void sync_folder(const std::filesystem::path& path, SystemCalls& calls = system_calls());
/// Makes a folder; returns false if the name exists already.
bool make_folder(const std::filesystem::path& path, SystemCalls& calls = system_calls());
/// Makes a folder and its missing parents; each new name is synced.
void make_folders(const std::filesystem::path& path, SystemCalls& calls = system_calls());
void rename(const std::filesystem::path& from, const std::filesystem::path& to, SystemCalls& calls);
/// Exchanges two paths atomically; returns false if the file system cannot.
bool exchange(const std::filesystem::path& one, const std::filesystem::path& other, SystemCalls& calls);
/// Removes a file, or a folder with everything in it; does nothing if `path` does not exist. Links are removed, not
/// followed.
void remove_tree(const std::filesystem::path& path, SystemCalls& calls = system_calls());
/// Returns the names in a folder, sorted; none if the folder does not exist.
std::vector<std::string> names_in(const std::filesystem::path& folder);

}  // namespace trainer
