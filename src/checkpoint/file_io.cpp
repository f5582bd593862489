#include "checkpoint/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/files.h"

namespace trainer::checkpoint {

namespace fs = std::filesystem;

int SystemCalls::open(const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); }
ssize_t SystemCalls::write(int fd, const void* data, size_t bytes) { return ::write(fd, data, bytes); }
ssize_t SystemCalls::pread(int fd, void* data, size_t bytes, int64_t offset) {
  return ::pread(fd, data, bytes, offset);
}
int SystemCalls::fsync(int fd) { return ::fsync(fd); }
int SystemCalls::close(int fd) { return ::close(fd); }
int SystemCalls::mkdir(const char* path, mode_t mode) { return ::mkdir(path, mode); }
int SystemCalls::rename(const char* from, const char* to) { return ::rename(from, to); }
int SystemCalls::exchange(const char* one, const char* other) {
  return ::renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE);
}
int SystemCalls::unlink(const char* path) { return ::unlink(path); }
int SystemCalls::rmdir(const char* path) { return ::rmdir(path); }

SystemCalls& system_calls() {
  static SystemCalls calls;
  return calls;
}

namespace {

[[noreturn]] void fail(const fs::path& path, const char* operation, int error) {
  const Code code = error == ENOENT && std::string_view(operation) == "open" ? Code::checkpoint : Code::io;
  throw Error(code, format("{}: cannot {}: {}", path.string(), operation, system_reason(error)));
}

/// Repeats a call that a signal interrupted.
template <typename Call>
auto uninterrupted(Call call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

/// A transfer is at most this long, so that a stop request never waits for a long call.
constexpr size_t kLongestTransfer = size_t{16} << 20;

}  // namespace

File File::create(SystemCalls& calls, const fs::path& path) {
  const int fd = uninterrupted([&] { return calls.open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  if (fd < 0) fail(path, "create", errno);
  return File(calls, path, fd);
}

File File::open(SystemCalls& calls, const fs::path& path) {
  // Without waiting for the writer of a FIFO.
  const int fd = uninterrupted([&] { return calls.open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0); });
  if (fd < 0) fail(path, "open", errno);
  return File(calls, path, fd);
}

File::~File() {
  if (fd_ >= 0) calls_.close(fd_);
}

File::File(File&& other) noexcept
    : calls_(other.calls_), path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

void File::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t wanted = std::min(bytes.size(), kLongestTransfer);
    const ssize_t written = uninterrupted([&] { return calls_.write(fd_, bytes.data(), wanted); });
    if (written < 0) fail(path_, "write", errno);
    if (written == 0) fail(path_, "write", ENOSPC);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void File::read(int64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const size_t wanted = std::min(bytes.size(), kLongestTransfer);
    const ssize_t got = uninterrupted([&] { return calls_.pread(fd_, bytes.data(), wanted, offset); });
    if (got < 0) fail(path_, "read", errno);
    if (got == 0) {
      throw Error(Code::checkpoint, format("{}: ends at byte {}, {} more were expected: the file is truncated",
                                           path_.string(), offset, bytes.size()));
    }
    bytes = bytes.subspan(static_cast<size_t>(got));
    offset += got;
  }
}

int64_t File::size() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) fail(path_, "examine", errno);
  return status.st_size;
}

void File::sync() {
  if (uninterrupted([&] { return calls_.fsync(fd_); }) != 0) fail(path_, "sync", errno);
}

void File::close() {
  // close() frees the descriptor whatever it returns, even EINTR.
  if (calls_.close(std::exchange(fd_, -1)) != 0 && errno != EINTR) fail(path_, "close", errno);
}

void write_file(SystemCalls& calls, const fs::path& path, std::string_view bytes) {
  File file = File::create(calls, path);
  file.write(std::as_bytes(std::span(bytes)));
  file.sync();
  file.close();
}

std::string read_file(SystemCalls& calls, const fs::path& path, int64_t limit) {
  const File file = File::open(calls, path);
  const int64_t size = file.size();
  if (size > limit) {
    throw Error(Code::checkpoint, format("{}: {} bytes, at most {} were expected", path.string(), size, limit));
  }
  std::string bytes(static_cast<size_t>(size), '\0');
  file.read(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

void sync_folder(SystemCalls& calls, const fs::path& path) {
  const int fd = uninterrupted([&] { return calls.open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  if (fd < 0) fail(path, "open", errno);
  const int result = uninterrupted([&] { return calls.fsync(fd); });
  const int error = errno;
  calls.close(fd);
  // Some network file systems have no sync for folders and return EINVAL. Their renames are durable by themselves.
  if (result != 0 && error != EINVAL && error != ENOTSUP) fail(path, "sync", error);
}

bool make_folder(SystemCalls& calls, const fs::path& path) {
  if (uninterrupted([&] { return calls.mkdir(path.c_str(), 0777); }) == 0) return true;
  if (errno != EEXIST) fail(path, "make folder", errno);
  return false;
}

void make_folders(SystemCalls& calls, const fs::path& path) {
  std::error_code ignored;
  if (path.empty() || fs::is_directory(path, ignored)) return;
  const fs::path parent = path.has_filename() ? path.parent_path() : path.parent_path().parent_path();
  make_folders(calls, parent);
  if (make_folder(calls, path)) sync_folder(calls, parent.empty() ? "." : parent);
  if (!fs::is_directory(path, ignored)) fail(path, "make folder", ENOTDIR);
}

void rename(SystemCalls& calls, const fs::path& from, const fs::path& to) {
  if (uninterrupted([&] { return calls.rename(from.c_str(), to.c_str()); }) != 0) fail(from, "rename", errno);
}

bool exchange(SystemCalls& calls, const fs::path& one, const fs::path& other) {
  if (uninterrupted([&] { return calls.exchange(one.c_str(), other.c_str()); }) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) return false;
  fail(one, "rename", errno);
}

void remove_tree(SystemCalls& calls, const fs::path& path) {
  std::error_code ignored;
  const fs::file_type type = fs::symlink_status(path, ignored).type();
  if (type == fs::file_type::not_found) return;
  if (type != fs::file_type::directory) {
    if (uninterrupted([&] { return calls.unlink(path.c_str()); }) != 0 && errno != ENOENT) fail(path, "remove", errno);
    return;
  }
  for (const std::string& name : names_in(path)) remove_tree(calls, path / name);
  if (uninterrupted([&] { return calls.rmdir(path.c_str()); }) != 0 && errno != ENOENT) fail(path, "remove", errno);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  while (!error && entry != fs::directory_iterator()) {
    names.push_back(entry->path().filename().string());
    entry.increment(error);
  }
  if (error && error != std::errc::no_such_file_or_directory) fail(folder, "list", error.value());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace trainer::checkpoint
