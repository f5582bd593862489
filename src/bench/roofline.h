#pragma once
// The roofline: no operator takes less time than its FLOPs at the rate of GEMMs, or than its bytes at the memory
// bandwidth (Williams, Waterman, Patterson 2009).
#include "device/device.h"

namespace trainer::bench {

struct Roofline {
  double flops = 0;        // FLOP/s of GEMMs
  double bytes_per_s = 0;  // memory bandwidth, reads plus writes
  /// Returns the minimum time in seconds for this much work.
  double least_seconds(double work_flops, double work_bytes) const;
};

/// Returns the bytes per second of copies much larger than the caches, counting both reads and writes.
double copy_rate(device::Device& device);

}  // namespace trainer::bench
