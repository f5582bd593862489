#pragma once
// Checkpoint folders: resolving a PATH, and finding the newest complete step folder.
#include <filesystem>
#include <string>
#include <vector>

#include "base/file_io.h"
#include "checkpoint/snapshot.h"

namespace trainer::checkpoint {

constexpr const char* kLatestFile = "latest";
/// Prefix of a step folder that a save of the same step has renamed, until its successor is in place.
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
/// Returns the step folders of a `checkpoints` folder; empty if there is no such folder. Only the sizes of shards are
/// checked.
Listing list_checkpoints(const std::filesystem::path& checkpoints, SystemCalls& calls = system_calls());

/// Returns those of a folder's checkpoints, newest first, that a run saved after it had resumed from the checkpoint of
/// this sequence by its path. Empty unless the newest is one of them. Resuming by a path several times is followed back
/// as long as the checkpoints between are there.
std::vector<Entry> descendants(const std::vector<Entry>& newest_first, int64_t sequence);

/// Returns the complete step folders of a `checkpoints` folder, newest first. Warns about each damaged one, and when
/// `latest` is missing or does not name the newest. Empty when there is no step folder; throws Code::checkpoint when
/// all of them are damaged. Only the sizes of shards are checked: reading them may still find Damage. Without `aloud`
/// there are no warnings.
std::vector<std::filesystem::path> complete_checkpoints(const std::filesystem::path& checkpoints,
                                                        SystemCalls& calls = system_calls(), bool aloud = true);

/// Returns the step folders to which PATH refers. PATH is a step folder of any name, or a `checkpoints` folder, its
/// file `latest`, or a run folder. The latter three give their complete step folders, newest first. Throws
/// Code::checkpoint when there is none.
std::vector<std::filesystem::path> candidates(const std::filesystem::path& path, SystemCalls& calls = system_calls(),
                                              bool aloud = true);
/// Returns the first of the candidates.
std::filesystem::path resolve(const std::filesystem::path& path, SystemCalls& calls = system_calls());

/// Returns the name in `latest`; empty if the file is missing or unreadable.
std::string read_latest(const std::filesystem::path& checkpoints, SystemCalls& calls = system_calls());

}  // namespace trainer::checkpoint
