#pragma once
// Files that are truncated while they are mapped. Reading a page that the file has lost raises SIGBUS, which ends a
// process. Under guard such a page reads as zeros and the loss is recorded, so the reader can find out before it uses
// them.
#include <cstdint>
#include <filesystem>

namespace trainer::data {

struct GuardedMapping;

/// Guards one read-only mapping for its life. The first guard of the process installs a handler of SIGBUS. Faults at
/// other addresses end the process as before.
class MappingGuard {
 public:
  MappingGuard(const std::byte* begin, int64_t bytes, std::filesystem::path path);
  ~MappingGuard();
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;

  /// True if a read hit a page that the file has lost. It stays true, and costs next to nothing.
  bool has_lost_page() const;
  /// Also true when the file of that name, if still the one that was mapped, is shorter now. Asks the system.
  bool is_cut_short() const;

 private:
  GuardedMapping* mapping_;
};

/// True if no mapping of the process is truncated. Asks the system for each file; allocates nothing.
bool mappings_are_whole();

}  // namespace trainer::data
