#pragma once
// The roofline: no operator is faster than its FLOPs at the rate of GEMMs, nor than its bytes at the rate of memory
// (Williams, Waterman, Patterson 2009).
#include "device/device.h"

namespace trainer::bench {

struct Roofline {
  double flops = 0;        // FLOP/s of GEMMs
  double bytes_per_s = 0;  // of memory, read and written
  /// Returns the least number of seconds that this work takes.
  double least_seconds(double work_flops, double work_bytes) const;
};

/// Returns the bytes per second of copying operands far beyond the caches, read and written bytes both counted.
double copy_rate(device::Device& device);

}  // namespace trainer::bench
