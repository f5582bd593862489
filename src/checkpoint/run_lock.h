#pragma once
// RunLock: only one process (job) at a time writes into a folder.
#include <filesystem>

namespace trainer::checkpoint {

/// Holds a flock on a file in the folder, which the kernel releases even if the process is killed. The file contains
/// the name of the lock's holder.
class RunLock {
 public:
  /// Creates a run folder and locks it with FOLDER/run.lock, which is never removed. Throws Code::usage with the
  /// process and host if another process holds the lock, and Code::io if the file cannot be created. Warns on a file
  /// system without locks.
  explicit RunLock(const std::filesystem::path& folder)
      : RunLock(folder, {"run.lock", "is training in this folder", "run.dir (or run.name)", true}) {}
  /// Does the same for a `checkpoints` folder, which several run folders may share, with FOLDER/save.lock, which the
  /// holder removes.
  static RunLock of_checkpoints(const std::filesystem::path& folder) {
    return RunLock(folder, {"save.lock", "keeps its checkpoints in this folder", "checkpoint.dir", false});
  }
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&&) = delete;

 private:
  struct Kind {
    const char* file;
    const char* does;  // the holder's activity, for messages
    const char* key;   // the configuration key to change, for messages
    bool stays;
  };
  RunLock(const std::filesystem::path& folder, const Kind& kind);

  int fd_ = -1;
  std::filesystem::path temporary_;  // the file, if it is removed together with this object
};

}  // namespace trainer::checkpoint
