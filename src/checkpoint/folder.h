#pragma once
// Folders: what a PATH means, and which step folder of several is the newest complete one.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/file_io.h"
#include "checkpoint/snapshot.h"

namespace trainer::checkpoint {

constexpr const char* kLatestFile = "latest";
/// A step folder that a save of the same step has pushed aside, until its successor is in place.
constexpr const char* kReplacedPrefix = ".replaced-";

/// "step-00000100"
std::string step_name(int64_t step);

/// A complete step folder.
struct Entry {
  std::filesystem::path folder;
  int64_t sequence = 0;  // of the save; the highest is the newest
  TrainState state;
};
struct Listing {
  std::vector<Entry> complete;       // newest first
  std::vector<std::string> damaged;  // what is wrong with each other step folder
};
/// The step folders of a `checkpoints` folder; empty when there is no such folder. Shards are checked for their size
/// only.
Listing list_checkpoints(const std::filesystem::path& checkpoints, SystemCalls& calls = system_calls());

/// The complete step folders of a `checkpoints` folder, newest first, with a warning for each damaged one and when
/// `latest` is missing or names another than the newest. Empty when there is no step folder; throws Code::checkpoint
/// when all of them are damaged. Shards are checked for their size only: reading them may still find Damage.
/// Not `aloud`: without the warnings.
std::vector<std::filesystem::path> complete_checkpoints(const std::filesystem::path& checkpoints,
                                                        SystemCalls& calls = system_calls(), bool aloud = true);
/// The first of them.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& checkpoints,
                                                       SystemCalls& calls = system_calls());

/// The step folders that PATH means: a step folder itself (whatever its name), or the complete ones, newest first, of a
/// `checkpoints` folder, its file `latest` or a run folder. Throws Code::checkpoint when there is none.
std::vector<std::filesystem::path> candidates(const std::filesystem::path& path, SystemCalls& calls = system_calls(),
                                              bool aloud = true);
/// The first of them.
std::filesystem::path resolve(const std::filesystem::path& path, SystemCalls& calls = system_calls());

/// The name in `latest`; empty when it is missing or unreadable.
std::string read_latest(const std::filesystem::path& checkpoints, SystemCalls& calls = system_calls());

}  // namespace trainer::checkpoint
