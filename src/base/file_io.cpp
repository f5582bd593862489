#include "base/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "base/files.h"
#include "base/lfs_pointer.h"

namespace trainer {

namespace fs = std::filesystem;

void fail_to(const char* operation, const fs::path& path, int error, Code code) {
  throw Error(code, format("{}: cannot {}: {}", path.string(), operation, system_reason(error)));
}

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

// Opens without waiting for the writer of a FIFO.
constexpr int kToRead = O_RDONLY | O_CLOEXEC | O_NONBLOCK;

/// Longer transfers are split into calls of this many bytes, so that a stop request never waits for a long call.
constexpr size_t kLongestTransfer = size_t{16} << 20;

/// Writes `bytes` bytes. call(done, length) writes up to `length` of them, starting at `done`, and returns the number
/// written.
template <typename Call>
void write_all(const fs::path& path, size_t bytes, Call call) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t written = uninterrupted([&] { return call(done, std::min(bytes - done, kLongestTransfer)); });
    if (written <= 0) fail_to("write", path, written < 0 ? errno : ENOSPC);
    done += static_cast<size_t>(written);
  }
}

}  // namespace

File File::create(const fs::path& path, SystemCalls& calls) {
  const int fd = uninterrupted([&] { return calls.open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  if (fd < 0) fail_to("create", path, errno);
  return File(calls, path, fd);
}

File File::open_to_write(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) fail_to("create", path, errno);
  return File(system_calls(), path, fd);
}

File File::overwrite(const fs::path& path, const fs::path& shown) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) fail_to("create", shown, errno);
  return File(system_calls(), shown, fd);
}

File File::open(const fs::path& path, SystemCalls& calls) {
  const int fd = uninterrupted([&] { return calls.open(path.c_str(), kToRead, 0); });
  if (fd < 0) fail_to("open", path, errno, errno == ENOENT ? Code::checkpoint : Code::io);
  return File(calls, path, fd);
}

File File::open_input(const fs::path& path) {
  const int fd = ::open(path.c_str(), kToRead);
  if (fd < 0) fail_to("open", path, errno, Code::data);
  File file(system_calls(), path, fd);
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
    throw Error(Code::data, format("{}: not a regular file", path.string()));
  return file;
}

File::~File() {
  if (fd_ >= 0) calls_.close(fd_);
}

File::File(File&& other) noexcept
    : calls_(other.calls_), path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

void File::write(std::span<const std::byte> bytes) {
  write_all(path_, bytes.size(),
            [&](size_t at, size_t length) { return calls_.write(fd_, bytes.data() + at, length); });
}

void File::write_at(int64_t offset, std::string_view bytes) {
  write_all(path_, bytes.size(), [&](size_t at, size_t length) {
    return ::pwrite(fd_, bytes.data() + at, length, offset + static_cast<int64_t>(at));
  });
}

size_t File::read_at(int64_t offset, void* out, size_t bytes) const {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = uninterrupted([&] {
      return calls_.pread(fd_, static_cast<char*>(out) + done, std::min(bytes - done, kLongestTransfer),
                          offset + static_cast<int64_t>(done));
    });
    if (got < 0) fail_to("read", path_, errno);
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

void File::read(int64_t offset, std::span<std::byte> bytes) const {
  if (const size_t got = read_at(offset, bytes.data(), bytes.size()); got < bytes.size())
    throw Error(Code::checkpoint, format("{}: ends at byte {}, but {} more bytes were expected: the file is truncated",
                                         path_.string(), offset + static_cast<int64_t>(got), bytes.size() - got));
}

int64_t File::size() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) fail_to("get its size", path_, errno);
  return status.st_size;
}

void File::truncate(int64_t bytes) {
  if (::ftruncate(fd_, bytes) != 0) fail_to("set its size", path_, errno);
}

void File::sync() {
  if (uninterrupted([&] { return calls_.fsync(fd_); }) != 0) fail_to("sync", path_, errno);
}

void File::close() {
  // close() frees the descriptor whatever it returns, even with EINTR.
  if (calls_.close(std::exchange(fd_, -1)) != 0 && errno != EINTR) fail_to("close", path_, errno);
}

void write_file(const fs::path& path, std::string_view bytes, SystemCalls& calls) {
  File file = File::create(path, calls);
  file.write(std::as_bytes(std::span(bytes)));
  file.sync();
  file.close();
}

std::string read_file(const fs::path& path, int64_t limit, SystemCalls& calls) {
  const File file = File::open(path, calls);
  const int64_t size = file.size();
  if (size > limit) {
    throw Error(Code::checkpoint, format("{}: the file has {} bytes; expected at most {}", path.string(), size, limit));
  }
  std::string bytes(static_cast<size_t>(size), '\0');
  file.read(0, std::as_writable_bytes(std::span(bytes)));
  refuse_lfs_pointer(path, bytes, Code::checkpoint);
  return bytes;
}

void sync_folder(const fs::path& path, SystemCalls& calls) {
  const int fd = uninterrupted([&] { return calls.open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  if (fd < 0) fail_to("open", path, errno, errno == ENOENT ? Code::checkpoint : Code::io);
  const int result = uninterrupted([&] { return calls.fsync(fd); });
  const int error = errno;
  calls.close(fd);
  // Some network file systems cannot sync folders and return EINVAL. Their renames are durable without it.
  if (result != 0 && error != EINVAL && error != ENOTSUP) fail_to("sync", path, error);
}

bool make_folder(const fs::path& path, SystemCalls& calls) {
  if (uninterrupted([&] { return calls.mkdir(path.c_str(), 0777); }) == 0) return true;
  if (errno != EEXIST) fail_to("make folder", path, errno);
  return false;
}

void make_folders(const fs::path& path, SystemCalls& calls) {
  std::error_code ignored;
  if (path.empty() || fs::is_directory(path, ignored)) return;
  const fs::path parent = path.has_filename() ? path.parent_path() : path.parent_path().parent_path();
  make_folders(parent, calls);
  if (make_folder(path, calls)) sync_folder(parent.empty() ? "." : parent, calls);
  if (!fs::is_directory(path, ignored)) fail_to("make folder", path, ENOTDIR);
}

void rename(const fs::path& from, const fs::path& to, SystemCalls& calls) {
  if (uninterrupted([&] { return calls.rename(from.c_str(), to.c_str()); }) != 0) fail_to("rename", from, errno);
}

bool exchange(const fs::path& one, const fs::path& other, SystemCalls& calls) {
  if (uninterrupted([&] { return calls.exchange(one.c_str(), other.c_str()); }) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) return false;
  fail_to("rename", one, errno);
}

void remove_tree(const fs::path& path, SystemCalls& calls) {
  std::error_code ignored;
  const fs::file_type type = fs::symlink_status(path, ignored).type();
  if (type == fs::file_type::not_found) return;
  if (type != fs::file_type::directory) {
    if (uninterrupted([&] { return calls.unlink(path.c_str()); }) != 0 && errno != ENOENT)
      fail_to("remove", path, errno);
    return;
  }
  for (const std::string& name : names_in(path)) remove_tree(path / name, calls);
  if (uninterrupted([&] { return calls.rmdir(path.c_str()); }) != 0 && errno != ENOENT) fail_to("remove", path, errno);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  while (!error && entry != fs::directory_iterator()) {
    names.push_back(entry->path().filename().string());
    entry.increment(error);
  }
  if (error && error != std::errc::no_such_file_or_directory) fail_to("list", folder, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace trainer
