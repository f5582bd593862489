#include "base/cgroup.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace trainer {

namespace fs = std::filesystem;

namespace {

/// The files of a controller in a group's folder.
struct MemoryFiles {
  std::vector<const char*> limits;
  const char *usage, *inactive, *active;  // the last two: members of memory.stat
};
const MemoryFiles kMemory1 = {
    {"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file", "total_active_file"};
const MemoryFiles kMemory2 = {{"memory.max", "memory.high"}, "memory.current", "inactive_file", "active_file"};

/// Returns the number in a file; empty if there is no such file or it contains a word, as "max" for no limit.
std::optional<int64_t> number_in(const fs::path& file) {
  int64_t number = 0;
  if (std::ifstream(file) >> number) return number;
  return std::nullopt;
}

std::optional<int64_t> member_of(const fs::path& file, std::string_view name) {
  std::ifstream in(file);
  int64_t value = 0;
  for (std::string word; in >> word >> value;)
    if (word == name) return value;
  return std::nullopt;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> words;
  std::istringstream in{std::string(text)};
  for (std::string word; std::getline(in, word, separator);) words.push_back(word);
  return words;
}

template <typename T>
void lower(std::optional<T>& least, T value) {
  least = least ? std::min(*least, value) : value;
}

void read_memory(const fs::path& folder, const MemoryFiles& files, GroupLimits& limits) {
  for (const char* file : files.limits) {
    const std::optional<int64_t> limit = number_in(folder / file);
    if (!limit) continue;
    const fs::path stat = folder / "memory.stat";
    // The kernel counts the page cache of files that were read or written, but drops it before it refuses memory.
    const int64_t cache = member_of(stat, files.inactive).value_or(0) + member_of(stat, files.active).value_or(0);
    const int64_t used = std::max<int64_t>(0, number_in(folder / files.usage).value_or(0) - cache);
    lower(limits.memory, std::max<int64_t>(0, *limit - used));
  }
}

void read_cores(const fs::path& folder, bool version_2, GroupLimits& limits) {
  int64_t quota = 0, period = 100'000;  // microseconds
  if (version_2) {
    std::ifstream in(folder / "cpu.max");
    if (!(in >> quota)) return;  // "max"
    in >> period;
  } else {
    quota = number_in(folder / "cpu.cfs_quota_us").value_or(-1);
    period = number_in(folder / "cpu.cfs_period_us").value_or(period);
  }
  if (quota > 0 && period > 0) lower(limits.cores, static_cast<double>(quota) / static_cast<double>(period));
}

/// A mounted hierarchy of groups.
struct Mount {
  bool version_2;
  std::vector<std::string> controllers;  // version 1
  std::string group;                     // the group that is visible at the mount point
  fs::path point;
};

/// Returns the hierarchies of /proc/self/mountinfo, whose lines end in "- TYPE SOURCE OPTIONS".
std::vector<Mount> mounts(const fs::path& root) {
  std::vector<Mount> all;
  std::ifstream in(root / "proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t dash = line.find(" - ");
    if (dash == line.npos) continue;
    const std::vector<std::string> before = split(line.substr(0, dash), ' '), after = split(line.substr(dash + 3), ' ');
    if (before.size() < 5 || after.size() < 3 || !after[0].starts_with("cgroup")) continue;
    all.push_back({after[0] == "cgroup2", split(after[2], ','), before[3], before[4]});
  }
  return all;
}

/// Calls visit(folder) for the folders of a group and of its ancestors.
template <typename Visit>
void each_ancestor(const fs::path& point, const std::string& visible, const std::string& group, Visit&& visit) {
  // In a container, the hierarchy's mount point may be a group below the root: its path is not part of the folder's.
  const bool below =
      visible != "/" && group.starts_with(visible) && (group.size() == visible.size() || group[visible.size()] == '/');
  std::vector<std::string> names = split(below ? group.substr(visible.size()) : group, '/');
  // Groups outside this process's cgroup namespace, "/../a", are not visible.
  std::erase_if(names, [](const std::string& name) { return name.empty() || name == ".."; });
  for (;; names.pop_back()) {
    fs::path folder = point;
    for (const std::string& name : names) folder /= name;
    visit(folder);
    if (names.empty()) return;
  }
}

}  // namespace

GroupLimits group_limits(const fs::path& root) {
  GroupLimits limits;
  const std::vector<Mount> all = mounts(root);
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // "4:cpu,cpuacct:/slurm/job_7"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string listed = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    const bool version_2 = listed.empty();
    for (const std::string& controller : version_2 ? std::vector<std::string>{""} : split(listed, ',')) {
      if (!version_2 && controller != "memory" && controller != "cpu") continue;
      // The usual mount points are tried as well, since a container may hide or replace mounts.
      std::vector<Mount> places = {{version_2, {}, "/", "/sys/fs/cgroup" / fs::path(listed)}};
      for (const Mount& mount : all)
        if (mount.version_2 == version_2 && (version_2 || std::ranges::count(mount.controllers, controller) > 0))
          places.push_back(mount);
      places.push_back({version_2, {}, "/", "/sys/fs/cgroup" / fs::path(version_2 ? "unified" : controller)});
      for (const Mount& place : places)
        each_ancestor(root / place.point.relative_path(), place.group, group, [&](const fs::path& folder) {
          if (version_2 || controller == "memory") read_memory(folder, version_2 ? kMemory2 : kMemory1, limits);
          if (version_2 || controller == "cpu") read_cores(folder, version_2, limits);
        });
    }
  }
  return limits;
}

}  // namespace trainer
