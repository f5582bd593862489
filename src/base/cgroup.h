#pragma once
// The limits of this process's control groups (cgroups), by which schedulers, containers and service managers share
// out a machine. Both versions are read: version 2 has one hierarchy of groups, version 1 one for each controller.
#include <cstdint>
#include <filesystem>
#include <optional>

namespace trainer {

struct GroupLimits {
  std::optional<int64_t> memory;  // bytes that may still be allocated, page cache that can be dropped included
  std::optional<double> cores;    // CPU seconds per second
};

/// Returns the tightest limits of this process's own groups and of all their ancestors that are visible to it; empty
/// if there is no limit. `root` is the root of the file system, for tests.
GroupLimits group_limits(const std::filesystem::path& root = "/");

}  // namespace trainer
