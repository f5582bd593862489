#pragma once
// CheckpointStore: folders of global tensors by name, published atomically. A step folder holds shard files, a
// manifest, the run's config and tokenizer, and COMPLETE, which is written last. The manifest records which runs of
// which tensor are where, with XXH3-128 checksums. The folder can be moved as it is.
//
// A save writes ".saving-step-…" and renames it when everything in it has reached the disk. A folder that must make way
// (the same step saved before, retention) is renamed first and then emptied. So a kill or a power loss at any time
// leaves whole step folders and hidden left-overs. The next store that is opened removes the left-overs.
//
// A save has two parts. First every rank writes its shard; then the first rank, which knows all shards, writes the
// manifest and publishes the folder. In the background a thread of each rank does that. Only the calling thread
// communicates: between the parts, when all threads have ended.
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file_io.h"
#include "checkpoint/manifest.h"
#include "checkpoint/snapshot.h"
#include "comm/world.h"

namespace trainer::checkpoint {

/// The checkpoints that are kept after a save. The newest is always kept. Of those saved while steps were skipped
/// (!TrainState::is_sound()) only the newest stays, and it counts for no other. The one of TrainState::proven_step
/// always stays: a run that diverges resumes from it.
struct Retention {
  int64_t keep = 0;        // that many of the newest sound ones; 0: all
  int64_t keep_every = 0;  // and each step that is a multiple; 0: none
  bool keep_best = false;  // and the one of TrainState::best_step, as the newest has it
};

class CheckpointStore {
 public:
  /// Makes the folder and removes the remains of an interrupted save. One run at a time may have a folder open
  /// (RunLock::of_checkpoints). With a `world` every rank makes a store and saves its own slices into the same folder;
  /// the first rank publishes.
  CheckpointStore(std::filesystem::path folder, Retention retention, SystemCalls& calls = system_calls(),
                  comm::World* world = nullptr);

  /// Writes and publishes FOLDER/step-00000100, replacing an earlier save of that step, and points `latest` to it. Then
  /// removes checkpoints that retention no longer keeps; a failure of that is a warning. The slices of all ranks cover
  /// each tensor exactly once. On return the checkpoint is on the disk. Throws Code::io, on every rank, with the
  /// earlier checkpoints as they were and the temporary folder gone.
  std::filesystem::path save(const Snapshot& snapshot);

  /// Does what save() does in parts, so that training can go on between them: begin(), then proceed() until it returns
  /// a time. In the background a thread writes, and `snapshot` and its tensors (copy_to_host) stay as they are
  /// meanwhile; else proceed() writes. Both are collective, and throw as save() does, which ends the save.
  void begin(const Snapshot& snapshot, bool background);
  /// Waits for this rank's thread. Returns when the checkpoint was complete, by now_seconds(), once it is published.
  std::optional<double> proceed();
  /// True from begin() until proceed() has returned a time.
  bool is_saving() const { return saving_.has_value(); }
  /// True if proceed() would wait for this rank's thread.
  bool is_writing() const;

  /// Removes what retention does not keep once the checkpoint of step `proven` is proven; a failure is a warning. While
  /// that checkpoint is being saved, its publication does it. The first rank calls it.
  void remove_old(int64_t proven);

  const std::filesystem::path& folder() const { return folder_; }

 private:
  /// The save in progress.
  struct Saving {
    const Snapshot& snapshot;
    std::launch policy;  // of writer
    int64_t proven;      // for retention
    std::filesystem::path temporary = {};
    bool publishing = false;   // all shards are written
    Manifest manifest = {};    // this rank's shard; then on the first rank those of all
    double complete_at = 0;    // by now_seconds()
    std::future<void> writer;  // last: its destructor waits for the thread, which uses the rest
  };

  /// Runs `action` on the first rank; its error is thrown on every one.
  void run_on_first_rank(const std::function<void()>& action);
  /// Runs a part of the save. If it throws, the save ends, and the first rank removes its folder.
  void attempt(const std::function<void()>& part);
  void write_shard_of_rank();
  /// Publishes the folder whose shards are written. The first rank's thread runs it.
  void complete(int64_t proven);
  void write_manifest(Manifest manifest, const Snapshot& snapshot, const std::filesystem::path& temporary);
  void publish(const std::filesystem::path& temporary, const std::string& name);
  void point_latest_to(const std::string& name);
  void remove_left_overs();
  void apply_retention(int64_t proven);
  /// Returns a hidden name that is free: ".PREFIX-NAME-…".
  std::filesystem::path fresh(const std::string& prefix, const std::string& name);

  std::filesystem::path folder_;
  Retention retention_;
  SystemCalls& calls_;
  std::unique_ptr<comm::World> alone_;  // without a world
  comm::World& world_;
  std::optional<Saving> saving_;  // last: as its writer
};

}  // namespace trainer::checkpoint
