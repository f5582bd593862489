#pragma once
// This process's memory as the operating system reports it, for comparison with the prediction.
#include <cstdint>

namespace trainer {

/// Returns the bytes of anonymous memory resident in this process, huge pages included, after the allocator has
/// returned freed memory to the system: if the allocator kept it, it would count as in use, and its reuse would not
/// show as growth. Reads /proc/self/smaps_rollup, or else /proc/self/status; returns 0 if neither can be read. The
/// kernel walks the page tables, which takes milliseconds per GiB: too slow to call in every step.
int64_t bytes_in_use();

/// Samples the growth of the memory in use since construction. For one thread only.
class MemoryProbe {
 public:
  MemoryProbe() : start_(bytes_in_use()) {}
  /// Samples the memory in use; returns its growth in bytes (may be negative) and records the largest.
  int64_t sample();
  int64_t start() const { return start_; }
  /// Returns the largest growth sampled so far, at least 0.
  int64_t peak() const { return peak_; }

 private:
  int64_t start_, peak_ = 0;
};

}  // namespace trainer
