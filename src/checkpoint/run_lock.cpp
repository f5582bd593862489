#include "checkpoint/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/file_io.h"
#include "base/log.h"
#include "base/name_lock.h"

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

/// Tries to take the lock without waiting. Returns 0, or the errno of the failure.
int try_lock(int fd) {
  return uninterrupted([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) == 0 ? 0 : errno;
}

}  // namespace

RunLock::RunLock(const fs::path& folder, const Kind& kind) {
  make_folders(folder);
  const fs::path path = folder / kind.file;
  int refused = 0;
  for (;;) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    const int reason = errno;
    if (fd_ < 0)
      throw Error(Code::io, format("{}: cannot open: {}; make the folder writable, or choose a different {}",
                                   path.string(), std::generic_category().message(reason), kind.key));
    refused = try_lock(fd_);
    if (refused != 0 || is_named(fd_, path)) break;
    ::close(fd_);
  }
  if (refused == EWOULDBLOCK) {
    const std::string owner = owner_in(fd_);
    ::close(fd_);
    throw Error(Code::usage, format("{}: {} {}; wait for it, stop it, or choose a different {}", folder.string(),
                                    owner.empty() ? "another process" : owner, kind.does, kind.key));
  }
  if (!kind.stays) temporary_ = path;
  if (refused != 0) {
    log::warning("{}: cannot lock: {}; a second run in this folder would not be detected", path.string(),
                 std::generic_category().message(refused));
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  content_ = format("{}\n{}\n", this_process(), now);
  // Other hosts see the content of an open file of a network file system only after fsync().
  if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, content_.data(), content_.size(), 0) < 0 || ::fsync(fd_) != 0) {
    const int reason = errno;
    log::warning("{}: cannot write: {}", path.string(), std::generic_category().message(reason));
    content_.clear();
  }
}

RunLock::~RunLock() {
  if (fd_ < 0) return;
  if (!temporary_.empty()) ::unlink(temporary_.c_str());  // before the lock is released: waiters check the name again
  ::close(fd_);
}

RunLock::RunLock(RunLock&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), content_(std::move(other.content_)), temporary_(std::move(other.temporary_)) {}

bool RunLock::is_visible(const fs::path& folder, bool checkpoints, const std::string& content, double seconds) {
  const std::string file = checkpoints ? kSaveLock : kRunLock;
  for (const double begin = now_seconds();;) {
    try {
      const std::vector<std::string> names = names_in(folder);  // reading a folder refreshes what NFS remembers of it
      if (std::ranges::count(names, file) > 0 && read_file(folder / file, kLongestOwner) == content) return true;
    } catch (const Error&) {
      // for example replaced at this time
    }
    if (now_seconds() - begin > seconds) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace trainer::checkpoint
