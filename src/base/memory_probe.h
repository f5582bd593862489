#pragma once
// Memory of this process as the operating system reports it, to be compared with the prediction.
#include <cstdint>

namespace trainer {

/// Returns the bytes of anonymous memory resident in this process, huge pages included. Reads /proc/self/smaps_rollup,
/// else /proc/self/status; 0 when neither can be read. Walks the page tables: milliseconds per GiB, so not for every
/// step.
int64_t anonymous_bytes();

/// Returns the same after the allocator has returned freed memory to the system. Memory that it keeps is not in use,
/// and reusing it later would not show as growth.
int64_t bytes_in_use();

/// Samples the growth of the memory in use since construction. For one thread only.
class MemoryProbe {
 public:
  MemoryProbe() : start_(bytes_in_use()) {}
  /// Reads the present value; returns its growth in bytes (may be negative) and remembers the largest.
  int64_t sample();
  int64_t start() const { return start_; }
  /// Returns the largest growth sampled so far, at least 0.
  int64_t peak() const { return peak_; }

 private:
  int64_t start_, peak_ = 0;
};

}  // namespace trainer
