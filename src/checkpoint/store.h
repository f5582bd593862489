#pragma once
// CheckpointStore: folders of global tensors by name, published atomically. A step folder holds shard files, a
// manifest, the run's config and tokenizer, and COMPLETE, which is written last. The manifest records which runs of
// which tensor are where, with XXH3-128 checksums. The folder can be moved as it is.
//
// A save writes ".saving-step-…" and renames it when everything in it has reached the disk. A folder that must make way
// (the same step saved before, retention) is renamed first and then emptied. So a kill or a power loss at any time
// leaves whole step folders and hidden left-overs. The next store that is opened removes the left-overs.
#include <filesystem>
#include <functional>
#include <memory>
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

  /// Removes what retention does not keep once the checkpoint of step `proven` is proven; a failure is a warning. The
  /// first rank calls it.
  void remove_old(int64_t proven);

  const std::filesystem::path& folder() const { return folder_; }

 private:
  /// Runs `action` on the first rank; its error is thrown on every one.
  void run_on_first_rank(const std::function<void()>& action);
  /// Writes this rank's shard; on the first rank returns the shards and tensors of all ranks.
  Manifest write_shards(const Snapshot& snapshot, const std::filesystem::path& temporary);
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
};

}  // namespace trainer::checkpoint
