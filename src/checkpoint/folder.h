#pragma once
// Checkpoint folders: resolving a PATH, and finding the newest complete step folder.
#include <filesystem>
#include <string>
#include <vector>

#include "base/file_io.h"
#include "checkpoint/snapshot.h"

namespace trainer::checkpoint {

constexpr const char* kLatestFile = "latest";
/// Prefix of a step folder that was renamed because the same step is saved again, until the new folder is in place.
constexpr const char* kReplacedPrefix = ".replaced-";

/// Returns "step-00000100".
std::string step_name(int64_t step);

/// A complete step folder.
struct Entry {
  std::filesystem::path folder;
  int64_t sequence = 0;  // sequence number of the save; the newest has the highest
  TrainState state;
};
struct Listing {
  std::vector<Entry> complete;       // newest first
  std::vector<std::string> damaged;  // the problem of each damaged step folder
};
/// Returns the step folders in a `checkpoints` folder; empty if the folder does not exist. Of the shards, only the
/// sizes are checked.
Listing list_checkpoints(const std::filesystem::path& checkpoints, SystemCalls& calls = system_calls());

/// Returns the checkpoints, newest first, that a run saved after it was resumed by path from the checkpoint with this
/// sequence number. Empty unless the newest checkpoint is one of them. A chain of several such resumes is followed back
/// as long as the checkpoints in between exist.
std::vector<Entry> descendants(const std::vector<Entry>& newest_first, int64_t sequence);

/// Returns the newest checkpoint up to this step in the history of a run whose state has this origin
/// (TrainState::origin): not those of branches that it left when it went back. Null if there is none.
const Entry* newest_up_to(const std::vector<Entry>& newest_first, int64_t step, int64_t origin);

/// Returns the complete step folders in a `checkpoints` folder, newest first; possibly none. Throws
/// Code::checkpoint if all step folders are corrupted. Of the shards, only the sizes are checked: reading them may
/// still throw Damage. With `aloud`, warns about each corrupted folder, and if `latest` does not name the newest.
std::vector<std::filesystem::path> complete_checkpoints(const std::filesystem::path& checkpoints, bool aloud = true);

/// Returns the step folders to which PATH refers. PATH is a step folder with any name, or a `checkpoints` folder, its
/// file `latest`, or a run folder; for the latter three the complete step folders are returned, newest first. Throws
/// Code::checkpoint if there is none.
std::vector<std::filesystem::path> candidates(const std::filesystem::path& path, bool aloud = true);
/// Returns the first of the candidates.
std::filesystem::path resolve(const std::filesystem::path& path);

/// Returns the name in `latest`; empty if the file is missing or unreadable.
std::string read_latest(const std::filesystem::path& checkpoints);

}  // namespace trainer::checkpoint
