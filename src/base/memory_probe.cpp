#include "base/memory_probe.h"

#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

namespace trainer {
namespace {

/// Returns the value of a "Key:   123 kB" line in bytes.
std::optional<int64_t> kilobyte_field(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string word; in >> word;) {
    int64_t kilobytes = 0;
    if (word == key && in >> kilobytes) return kilobytes * 1024;
  }
  return std::nullopt;
}

}  // namespace

int64_t bytes_in_use() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  malloc_trim(0);  // sanitizers replace glibc's allocator; trimming would initialize the unused one, in a data race
#endif
  if (const auto bytes = kilobyte_field("/proc/self/smaps_rollup", "Anonymous:")) return *bytes;
  return kilobyte_field("/proc/self/status", "RssAnon:").value_or(0);
}

int64_t MemoryProbe::sample() {
  const int64_t growth = bytes_in_use() - start_;
  peak_ = std::max(peak_, growth);
  return growth;
}

}  // namespace trainer
