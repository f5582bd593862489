#include "data/files.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "base/checksum.h"
#include "base/files.h"
#include "base/lfs_pointer.h"

namespace trainer::data {

namespace fs = std::filesystem;

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  const File file = File::open_input(path);
  size_ = file.size();
  if (size_ == 0) return;
  void* mapped = ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (mapped == MAP_FAILED) {
    const int reason = errno;
    throw Error(reason == ENOMEM ? Code::plan : Code::io,
                format("{}: cannot map into memory: {}", path.string(), system_reason(reason)));
  }
  data_ = static_cast<const std::byte*>(mapped);
  guard_.emplace(data_, size_, path);
}

void MappedFile::refuse_cut() const {
  std::error_code none;
  const auto now = fs::file_size(path_, none);
  throw Error(Code::data, fmt::format("{}: truncated while in use: it had {} bytes, there {} {} now", path_.string(),
                                      size_, none ? "is" : "are", none ? "no file" : fmt::format("{}", now)));
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
  const File file = File::open_input(path);
  std::string bytes(static_cast<size_t>(file.size()), '\0');
  bytes.resize(file.read_at(0, bytes.data(), bytes.size()));
  refuse_lfs_pointer(path, bytes, Code::data);
  return bytes;
}

std::string hash_file(const fs::path& path) { return to_string(checksum_of(File::open_input(path))); }

}  // namespace trainer::data
