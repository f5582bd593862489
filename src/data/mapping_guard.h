#pragma once
// Files that are truncated while they are mapped. Reading a page beyond the new end raises SIGBUS, which kills the
// process. In a guarded mapping such a page reads as zeros and the loss is recorded, so that the reader can detect it
// before using the data.
#include <cstdint>
#include <filesystem>

namespace trainer::data {

struct GuardedMapping;

/// Guards one read-only mapping as long as it exists. The first guard in the process installs a SIGBUS handler. Faults
/// at other addresses are passed to the previous handler.
class MappingGuard {
 public:
  MappingGuard(const std::byte* begin, int64_t bytes, std::filesystem::path path);
  ~MappingGuard();
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;

  /// True if a read hit a page that was truncated from the file. It stays true, and is cheap to check.
  bool has_lost_page() const;
  /// Like has_lost_page(), but also true if the mapped file still has its name and is now shorter. Queries the system.
  bool is_cut_short() const;

 private:
  GuardedMapping* mapping_;
};

/// True if no mapping of the process is truncated. Queries the system for each file; allocates nothing.
bool mappings_are_whole();

}  // namespace trainer::data
