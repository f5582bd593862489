#pragma once
// CheckpointStore: folders of named global tensors, published atomically. A step folder contains shard files, a
// manifest, the run's config and tokenizer, and COMPLETE, which is written last. The manifest records where the runs of
// each tensor are stored, with XXH3-128 checksums. A step folder can be moved anywhere.
//
// A save writes ".saving-step-…" and renames the folder once its content is durable. A folder that is replaced (by a
// second save of the same step) or deleted (by retention) is renamed first and then removed. So after a kill or a power
// failure at any time there are only complete step folders and hidden leftovers, which the next store removes.
//
// A save has two parts. First every rank writes its shard; then the first rank, which knows all shards, writes the
// manifest and publishes the folder. With background saving, a thread of each rank does this. Only the calling thread
// communicates, between the two parts, when all threads have ended.
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "base/file_io.h"
#include "checkpoint/manifest.h"
#include "checkpoint/snapshot.h"
#include "comm/world.h"

namespace trainer::checkpoint {

/// The checkpoints that are kept after a save. The newest is always kept. Of those saved while steps were skipped
/// (!TrainState::is_sound()) only the newest is kept, and it does not count as one of `keep`. The checkpoint of
/// TrainState::proven_step is always kept: a run that diverges resumes from it. So is the newest one that a replay
/// confirmed (TrainState::verified_step).
struct Retention {
  int64_t keep = 0;        // number of newest intact checkpoints to keep; 0: all
  int64_t keep_every = 0;  // also keep every step that is a multiple of this; 0: none
  bool keep_best = false;  // also keep the checkpoint at the best_step recorded in the newest checkpoint
};

class CheckpointStore {
 public:
  /// Creates the folder and removes the remains of an interrupted save. Only one run at a time may have a folder open
  /// (RunLock::of_checkpoints). With a `world` every rank makes a store and saves its own slices into the same folder;
  /// the first rank publishes.
  CheckpointStore(std::filesystem::path folder, Retention retention, SystemCalls& calls = system_calls(),
                  comm::World* world = nullptr);

  /// Writes and publishes FOLDER/step-00000100, replacing an earlier save of that step, and points `latest` to it. Then
  /// removes checkpoints that retention no longer keeps. A failure after the folder has its name is a warning. The
  /// slices of all ranks must cover each tensor exactly once. On return the checkpoint is durable, except after such a
  /// warning. Throws Code::io on every rank, and then leaves the earlier checkpoints unchanged and removes the
  /// temporary folder.
  std::filesystem::path save(const Snapshot& snapshot);

  /// Does the same as save() in parts, so that training can continue between them: begin(), then proceed() until it
  /// returns a time. With `background` a thread writes, and `snapshot` and its tensors (copy_to_host) must not change
  /// meanwhile; otherwise proceed() writes. Both are collective. They throw as save() does, which ends the save.
  void begin(const Snapshot& snapshot, bool background);
  /// Waits for this rank's thread. Once the checkpoint is published, returns the time at which it was complete, in
  /// now_seconds().
  std::optional<double> proceed();
  /// True from begin() until proceed() has returned a time.
  bool is_saving() const { return saving_.has_value(); }
  /// True if proceed() would wait for this rank's thread.
  bool is_writing() const;

  /// Removes what retention does not keep once the checkpoint of step `proven` is proven; a failure is a warning. If
  /// that checkpoint is still being saved, its publication removes them. Called by rank 0.
  void remove_old(int64_t proven);

  const std::filesystem::path& folder() const { return folder_; }

 private:
  /// The save in progress.
  struct Saving {
    const Snapshot& snapshot;
    std::launch policy;  // launch policy of the writer
    int64_t proven;      // for retention
    std::filesystem::path temporary = {};
    bool publishing = false;   // all shards are written
    Manifest manifest = {};    // this rank's shard; later, on rank 0, those of all ranks
    double complete_at = 0;    // in now_seconds()
    std::future<void> writer;  // declared last: its destructor waits for the thread, which uses the others
  };

  /// Runs `action` on rank 0; its error is thrown on every rank.
  void run_on_first_rank(const std::function<void()>& action);
  /// Runs a part of the save. If it throws, the save ends, and rank 0 removes its folder.
  void attempt(const std::function<void()>& part);
  void write_shard_of_rank();
  /// Publishes the folder whose shards are written. Runs on rank 0's thread.
  void complete(int64_t proven);
  void write_manifest(Manifest manifest, const Snapshot& snapshot, const std::filesystem::path& temporary);
  /// Gives the folder its name. Returns the folder of an earlier save of this step, to be removed, or an empty path.
  std::filesystem::path publish(const std::filesystem::path& temporary, const std::string& name);
  void remove_left_overs();
  void apply_retention(int64_t proven);
  /// Returns an unused hidden name: ".PREFIX-NAME-…".
  std::filesystem::path fresh(const std::string& prefix, const std::string& name);

  std::filesystem::path folder_;
  Retention retention_;
  SystemCalls& calls_;
  std::unique_ptr<comm::World> solo_;  // used if there is no world
  comm::World& world_;
  std::optional<Saving> saving_;  // declared last: its destructor waits for the writer, which uses the others
};

}  // namespace trainer::checkpoint
