#pragma once
// NameLock: only one process at a time writes to a name. The kernel releases the lock if its holder is killed.
#include <filesystem>
#include <optional>

#include "base/file_io.h"

namespace trainer {

/// Holds a flock on a file, which is removed together with this object.
class NameLock {
 public:
  /// Creates the file and locks it. Empty if another process holds the lock. Warns on a file system without locks.
  static std::optional<NameLock> take(const std::filesystem::path& path);
  ~NameLock();
  NameLock(NameLock&&) noexcept = default;
  NameLock& operator=(NameLock&&) = delete;

  /// False on a file system without locks: other processes may write to the name, too.
  bool is_exclusive() const { return exclusive_; }
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  NameLock(File file, bool exclusive) : file_(std::move(file)), exclusive_(exclusive) {}

  File file_;
  bool exclusive_;
};

/// True if `path` names the open file `fd`. Check it after taking a lock: the previous holder may have removed the
/// name.
bool is_named(int fd, const std::filesystem::path& path);

}  // namespace trainer
