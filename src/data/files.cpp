#include "data/files.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/lfs_pointer.h"

namespace trainer::data {

namespace fs = std::filesystem;
namespace {

File open_one_more(const fs::path& path) {
  struct rlimit files {};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  return File::open_input(path);
}

}  // namespace

InputFile::InputFile(const fs::path& path) : file_(open_one_more(path)), size_(file_.size()) {}

void InputFile::read(int64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = uninterrupted([&] { return ::pread(file_.descriptor(), bytes.data(), bytes.size(), offset); });
    if (got < 0) fail_to("read", path(), errno, Code::data);
    if (got == 0) throw cut_short();
    bytes = bytes.subspan(static_cast<size_t>(got));
    offset += got;
  }
}

void InputFile::require_whole() const {
  if (!is_whole()) throw cut_short();
}

Error InputFile::cut_short() const {
  return {Code::data, fmt::format("{}: truncated while in use: it had {} bytes, there are {} now", path().string(),
                                  size_, file_.size())};
}

void InputFile::will_need(int64_t offset, int64_t bytes) const {
  ::posix_fadvise(file_.descriptor(), offset, bytes, POSIX_FADV_WILLNEED);
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
