#pragma once
// RunLock: only one process (job) at a time writes into a folder.
#include <filesystem>
#include <string>

namespace trainer::checkpoint {

constexpr const char *kRunLock = "run.lock", *kSaveLock = "save.lock";

/// Holds a flock on a file in the folder, which the kernel releases even if the process is killed. The file contains
/// the name of the lock's holder, and a number that is different in every lock.
class RunLock {
 public:
  /// Creates a run folder and locks it with FOLDER/run.lock, which is never removed. Throws Code::usage with the
  /// process and host if another process holds the lock, and Code::io if the file cannot be created. Warns on a file
  /// system without locks.
  explicit RunLock(const std::filesystem::path& folder)
      : RunLock(folder, {kRunLock, "is training in this folder", "run.dir (or run.name)", true}) {}
  /// Does the same for a `checkpoints` folder, which several run folders may share, with FOLDER/save.lock, which the
  /// holder removes.
  static RunLock of_checkpoints(const std::filesystem::path& folder) {
    return RunLock(folder, {kSaveLock, "keeps its checkpoints in this folder", "checkpoint.dir", false});
  }
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&&) = delete;

  /// Returns the file's content, which no other lock has; empty: it could not be written.
  const std::string& content() const { return content_; }
  /// True if this process finds a `checkpoints` folder's (`checkpoints`) or a run folder's lock with this content.
  /// Waits for at most `seconds`, since a network file system may show new files late.
  static bool is_visible(const std::filesystem::path& folder, bool checkpoints, const std::string& content,
                         double seconds);

 private:
  struct Kind {
    const char* file;
    const char* does;  // the holder's activity, for messages
    const char* key;   // the configuration key to change, for messages
    bool stays;
  };
  RunLock(const std::filesystem::path& folder, const Kind& kind);

  int fd_ = -1;
  std::string content_;
  std::filesystem::path temporary_;  // the file, if it is removed together with this object
};

}  // namespace trainer::checkpoint
