#pragma once
// What the operating system says this process holds, to be compared with the predicted memory.
#include <cstdint>

namespace trainer::train {

/// Bytes of anonymous memory resident in this process, huge pages included (/proc/self/smaps_rollup, else
/// /proc/self/status); 0 when neither can be read. Walks the page tables: milliseconds per GiB, so not for every step.
int64_t anonymous_bytes();

/// Growth of anonymous memory since construction. One thread.
class MemoryProbe {
 public:
  MemoryProbe() : start_(anonymous_bytes()) {}
  /// Reads the present value; returns its growth in bytes (may be negative) and remembers the largest.
  int64_t sample();
  int64_t start() const { return start_; }
  /// Largest growth sampled so far, at least 0.
  int64_t peak() const { return peak_; }

 private:
  int64_t start_, peak_ = 0;
};

}  // namespace trainer::train
