#include "data/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/files.h"

namespace trainer::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHashBlock = size_t{1} << 20;

[[noreturn]] void fail(Code code, const fs::path& path, const char* action) {
  const int reason = errno;
  throw Error(code, fmt::format("{}: cannot {}: {}", path.string(), action, system_reason(reason)));
}

std::string hex(XXH128_hash_t hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }

}  // namespace

File::File(fs::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

File File::open_to_read(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO does not wait
  if (descriptor < 0) fail(Code::data, path, "open");
  File file(path, descriptor);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) fail(Code::data, path, "read its size");
  if (!S_ISREG(status.st_mode)) throw Error(Code::data, fmt::format("{}: not a regular file", path.string()));
  return file;
}

File File::open_to_write(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0) fail(Code::io, path, "create");
  return File(path, descriptor);
}

File::File(File&& other) noexcept : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int64_t File::size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) fail(Code::io, path_, "read its size");
  return status.st_size;
}

size_t File::read_at(int64_t offset, char* out, size_t bytes) const {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::pread(descriptor_, out + done, bytes - done, offset + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(Code::io, path_, "read");
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

void File::write_at(int64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(descriptor_, bytes.data(), bytes.size(), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail(Code::io, path_, "write");
    bytes.remove_prefix(static_cast<size_t>(put));
    offset += put;
  }
}

void File::truncate(int64_t bytes) {
  if (::ftruncate(descriptor_, bytes) != 0) fail(Code::io, path_, "set its size");
}

void File::sync() {
  if (::fsync(descriptor_) != 0) fail(Code::io, path_, "write it to disk");
}

bool File::try_lock() { return ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; }

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO does not wait
  if (descriptor < 0) fail(Code::data, path, "open");
  struct stat status {};
  const bool regular = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  size_ = regular ? status.st_size : 0;
  void* mapped = nullptr;
  if (size_ > 0) mapped = ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_SHARED, descriptor, 0);
  const int reason = errno;
  ::close(descriptor);
  if (!regular) throw Error(Code::data, fmt::format("{}: not a regular file", path.string()));
  errno = reason;
  if (mapped == MAP_FAILED) fail(reason == ENOMEM ? Code::plan : Code::io, path, "map into memory");
  data_ = static_cast<const std::byte*>(mapped);
  if (size_ > 0) guard_.emplace(data_, size_, path);
}

void MappedFile::refuse_cut() const {
  std::error_code none;
  const auto now = fs::file_size(path_, none);
  throw Error(Code::data,
              fmt::format("{}: it became shorter while it was in use: {} bytes were there, {} {} now", path_.string(),
                          size_, none ? "no file" : fmt::format("{}", now), none ? "is" : "are"));
}

MappedFile::~MappedFile() {
  guard_.reset();
  if (size_ > 0) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
}

void MappedFile::will_need(int64_t offset, int64_t bytes) const {
  if (size_ == 0) return;
  static const int64_t page = ::sysconf(_SC_PAGESIZE);
  const int64_t begin = offset / page * page;
  ::madvise(const_cast<std::byte*>(data_) + begin, static_cast<size_t>(offset - begin + bytes), MADV_WILLNEED);
}

std::string read_file(const fs::path& path) {
  const File file = File::open_to_read(path);
  std::string bytes(static_cast<size_t>(file.size()), '\0');
  bytes.resize(file.read_at(0, bytes.data(), bytes.size()));
  return bytes;
}

std::string hash_bytes(std::string_view bytes) { return hex(XXH3_128bits(bytes.data(), bytes.size())); }

std::string hash_file(const fs::path& path) {
  const File file = File::open_to_read(path);
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), XXH3_freeState);
  XXH3_128bits_reset(state.get());
  std::vector<char> block(kHashBlock);
  int64_t offset = 0;
  while (const size_t got = file.read_at(offset, block.data(), block.size())) {
    XXH3_128bits_update(state.get(), block.data(), got);
    offset += static_cast<int64_t>(got);
  }
  return hex(XXH3_128bits_digest(state.get()));
}

}  // namespace trainer::data
