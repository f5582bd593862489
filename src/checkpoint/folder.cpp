#include "checkpoint/folder.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/manifest.h"

namespace trainer::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kStepPrefix = "step-";

/// True if the name is "step-" followed by digits only, so that a user's copy "step-00000100.good" is ignored.
bool is_step_name(std::string_view name) {
  if (!name.starts_with(kStepPrefix) || name.size() == kStepPrefix.size()) return false;
  name.remove_prefix(kStepPrefix.size());
  return std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_step_folder(const fs::path& path) {
  std::error_code error;
  return fs::exists(path / kManifestFile, error) || fs::exists(path / kCompleteFile, error);
}

bool has_step_folders(const fs::path& path) {
  const std::vector<std::string> names = names_in(path);
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name == kLatestFile || is_step_name(name) || name.starts_with(kReplacedPrefix);
  });
}

/// Returns the `checkpoints` folder to which a PATH other than a step folder refers.
std::optional<fs::path> checkpoints_of(const fs::path& path) {
  std::error_code error;
  if (path.filename() == kLatestFile && fs::is_regular_file(path, error)) return path.parent_path();
  if (!fs::is_directory(path, error)) return std::nullopt;
  if (fs::is_directory(path / "checkpoints", error)) return path / "checkpoints";
  if (has_step_folders(path)) return path;
  return std::nullopt;
}

}  // namespace

std::string step_name(int64_t step) { return format("{}{:08}", kStepPrefix, step); }

std::string read_latest(const fs::path& checkpoints) {
  constexpr int64_t kLongestName = 255;
  try {
    std::string name = read_file(checkpoints / kLatestFile, kLongestName + 1);
    if (name.ends_with('\n')) name.pop_back();
    return name;
  } catch (const Error&) {
    return {};
  }
}

Listing list_checkpoints(const fs::path& checkpoints, SystemCalls& calls) {
  Listing listing;
  for (const std::string& name : names_in(checkpoints)) {
    if (!is_step_name(name) && !name.starts_with(kReplacedPrefix)) continue;
    const fs::path folder = checkpoints / name;
    try {
      const Manifest manifest = read_manifest(folder, calls);
      listing.complete.push_back({folder, manifest.sequence, manifest.header.state});
    } catch (const Error& error) {
      listing.damaged.push_back(error.what());
    }
  }
  std::sort(listing.complete.begin(), listing.complete.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.sequence, a.state.step) > std::pair(b.sequence, b.state.step);
  });
  return listing;
}

std::vector<Entry> descendants(const std::vector<Entry>& newest_first, int64_t sequence) {
  const auto descends = [&](const Entry& entry) {
    int64_t origin = entry.state.origin, later = entry.sequence;
    while (origin > 0 && origin < later && origin != sequence) {
      const auto step = std::ranges::find(newest_first, origin, &Entry::sequence);
      later = std::exchange(origin, step == newest_first.end() ? 0 : step->state.origin);
    }
    return origin > 0 && origin == sequence;
  };
  std::vector<Entry> found;
  if (!newest_first.empty() && descends(newest_first.front()))
    std::ranges::copy_if(newest_first, std::back_inserter(found), descends);
  return found;
}

const Entry* newest_up_to(const std::vector<Entry>& newest_first, int64_t step, int64_t origin) {
  for (const Entry& entry : newest_first) {
    if (entry.sequence == origin)
      origin = entry.state.origin;
    else if (entry.state.origin != origin)
      continue;
    if (entry.state.step <= step) return &entry;
  }
  return nullptr;
}

std::vector<fs::path> complete_checkpoints(const fs::path& checkpoints, bool aloud) {
  const Listing listing = list_checkpoints(checkpoints);
  if (aloud)
    for (const std::string& problem : listing.damaged) log::warning("checkpoint skipped: {}", problem);
  if (listing.complete.empty()) {
    if (listing.damaged.empty()) return {};
    throw Error(
        Code::checkpoint,
        format("{}: none of its {} checkpoints can be read ({}); to start from scratch, choose a different run.name",
               checkpoints.string(), listing.damaged.size(), listing.damaged.back()));
  }
  const fs::path& newest = listing.complete.front().folder;
  const std::string latest = read_latest(checkpoints);
  if (aloud && latest != newest.filename()) {
    log::warning("{} {}; using the newest complete checkpoint, {} (to use a different one, specify its folder)",
                 (checkpoints / kLatestFile).string(),
                 latest.empty() ? std::string("is missing or unreadable") : format("names {}", latest),
                 newest.filename().string());
  }
  std::vector<fs::path> folders;
  for (const Entry& entry : listing.complete) folders.push_back(entry.folder);
  return folders;
}

std::vector<fs::path> candidates(const fs::path& path, bool aloud) {
  if (is_step_folder(path)) return {path.has_filename() ? path : path.parent_path()};  // "step-00000004/"
  if (const auto checkpoints = checkpoints_of(path)) {
    if (const auto folders = complete_checkpoints(*checkpoints, aloud); !folders.empty()) return folders;
  }
  std::error_code error;
  const bool foreign = fs::exists(path / "config.json", error);
  throw Error(Code::checkpoint,
              format("{}: {}; expected a step folder (with {}), a checkpoints folder or a run folder{}", path.string(),
                     fs::exists(path, error) ? "no checkpoint found" : "not found", kManifestFile,
                     foreign ? "; convert a Hugging Face model with `trainer checkpoint import`" : ""));
}

fs::path resolve(const fs::path& path) { return candidates(path).front(); }

}  // namespace trainer::checkpoint
