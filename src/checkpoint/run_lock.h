#pragma once
// RunLock: only one process (job) at a time writes into a folder.
#include <filesystem>
#include <string>

namespace trainer::checkpoint {

/// Holds a file in the folder by flock: the kernel releases it when the process ends, however it ends. The file names
/// its holder.
class RunLock {
 public:
  /// Locks a run folder by FOLDER/run.lock, which stays. Creates the folder. Throws Code::usage, naming process and
  /// host, when another process holds the lock. Throws Code::io when the file cannot be created. Warns on a file system
  /// without locks.
  explicit RunLock(const std::filesystem::path& folder)
      : RunLock(folder, {"run.lock", "is training in this folder", "run.dir (or run.name)", true}) {}
  /// Does the same for a `checkpoints` folder, which several run folders may share. FOLDER/save.lock is removed by its
  /// holder.
  static RunLock of_checkpoints(const std::filesystem::path& folder) {
    return RunLock(folder, {"save.lock", "keeps its checkpoints in this folder", "checkpoint.dir", false});
  }
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&&) = delete;

 private:
  struct Kind {
    const char* file;
    const char* does;  // what the holder does there, for messages
    const char* key;   // the configuration key to change, for messages
    bool stays;
  };
  RunLock(const std::filesystem::path& folder, const Kind& kind);

  int fd_ = -1;
  std::filesystem::path temporary_;  // the file, if it is removed together with this object
};

}  // namespace trainer::checkpoint
