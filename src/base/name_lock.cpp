#include "base/name_lock.h"

#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>

#include "base/log.h"

namespace trainer {

namespace fs = std::filesystem;

std::optional<NameLock> NameLock::take(const fs::path& path) {
  for (;;) {
    File file = File::open_to_write(path);
    const bool locked = uninterrupted([&] { return ::flock(file.descriptor(), LOCK_EX | LOCK_NB); }) == 0;
    if (!locked && errno == EWOULDBLOCK) return std::nullopt;
    if (!locked)
      log::warning("{}: cannot lock: {}; a second process that writes here would not be detected", path.string(),
                   std::generic_category().message(errno));
    if (!locked || is_named(file.descriptor(), path)) return NameLock(std::move(file), locked);
  }
}

NameLock::~NameLock() {
  std::error_code ignored;
  // Before the lock is released: the next holder checks the name.
  if (file_.descriptor() >= 0) fs::remove(file_.path(), ignored);
}

bool is_named(int fd, const fs::path& path) {
  struct stat open {
  }, named{};
  return ::fstat(fd, &open) == 0 && ::stat(path.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

}  // namespace trainer
