#pragma once
// RunLock: one process (job) at a time works in a run folder.
#include <filesystem>

namespace trainer::checkpoint {

/// Holds FOLDER/run.lock by flock: the kernel lets go of it when the process ends, however it ends; the file stays and
/// says who held it last.
class RunLock {
 public:
  /// Makes the folder. Throws Code::usage naming process and host when another one holds the lock, Code::io when the
  /// file cannot be made. On a file system without locks: a warning.
  explicit RunLock(const std::filesystem::path& folder);
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace trainer::checkpoint
