#include "checkpoint/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/file_io.h"

namespace trainer::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr size_t kLongestOwner = 255;

std::string this_process() {
  char host[128] = {};
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '?';
  return format("process {} on {}", ::getpid(), host);
}

std::string owner_in(int fd) {
  std::string text(kLongestOwner, '\0');
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text.substr(0, text.find('\n'));
}

}  // namespace

RunLock::RunLock(const fs::path& folder) {
  make_folders(system_calls(), folder);
  const fs::path path = folder / "run.lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) {
    throw Error(Code::io, format("{}: cannot open: {}; the run's folder must be writable", path.string(),
                                 std::generic_category().message(errno)));
  }
  int result = 0;
  do result = ::flock(fd_, LOCK_EX | LOCK_NB);
  while (result != 0 && errno == EINTR);
  if (result != 0 && errno == EWOULDBLOCK) {
    const std::string owner = owner_in(fd_);
    ::close(fd_);
    throw Error(Code::usage,
                format("{}: {} is training in this folder; wait for it, stop it, or set another run.dir (or run.name)",
                       folder.string(), owner.empty() ? "another process" : owner));
  }
  if (result != 0) {
    log::warning("{}: cannot lock: {}; nothing keeps a second run out of this folder", path.string(),
                 std::generic_category().message(errno));
    return;
  }
  const std::string owner = this_process() + "\n";
  if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, owner.data(), owner.size(), 0) < 0) {
    log::warning("{}: cannot write: {}", path.string(), std::generic_category().message(errno));
  }
}

RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);
}

RunLock::RunLock(RunLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

}  // namespace trainer::checkpoint
