#pragma once
// Folders: the resolution of a PATH, and the newest complete one of several step folders.
#include <filesystem>
#include <string>
#include <vector>

#include "base/file_io.h"
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
  std::vector<std::string> damaged;  // the problem of each other step folder
};
/// The step folders of a `checkpoints` folder; empty when there is no such folder. Shards are checked for their size
/// only.
Listing list_checkpoints(const std::filesystem::path& checkpoints, SystemCalls& calls = system_calls());

/// Returns the complete step folders of a `checkpoints` folder, newest first. Warns of each damaged one, and when
/// `latest` is missing or does not name the newest. Empty when there is no step folder; throws Code::checkpoint when
/// all of them are damaged. Shards are checked for their size only: reading them may still find Damage. Without `aloud`
/// there are no warnings.
std::vector<std::filesystem::path> complete_checkpoints(const std::filesystem::path& checkpoints,
                                                        SystemCalls& calls = system_calls(), bool aloud = true);

/// Returns the step folders that PATH means. PATH is a step folder of any name, or a `checkpoints` folder, its file
/// `latest`, or a run folder. The latter three give their complete step folders, newest first. Throws Code::checkpoint
/// when there is none.
std::vector<std::filesystem::path> candidates(const std::filesystem::path& path, SystemCalls& calls = system_calls(),
                                              bool aloud = true);
/// The first of them.
std::filesystem::path resolve(const std::filesystem::path& path, SystemCalls& calls = system_calls());

/// The name in `latest`; empty when it is missing or unreadable.
std::string read_latest(const std::filesystem::path& checkpoints, SystemCalls& calls = system_calls());

}  // namespace trainer::checkpoint
