#pragma once
// Rate of AdamW beside that of its memory traffic alone.
#include "tensor/exec.h"

namespace trainer::bench {

struct OptimizerRate {
  double parameters_per_s = 0;          // parameters that AdamW updates, with fp32 state
  double gb_per_s = 0;                  // at its 28 bytes a parameter
  double traffic_parameters_per_s = 0;  // by a loop that reads and writes the same bytes and computes nothing
  double copying_parameters_per_s = 0;  // parameters that AdamW updates while it writes a bf16 copy of the weights
  double share() const { return parameters_per_s / traffic_parameters_per_s; }
  /// Bytes a second, beside those of the loop: 30 bytes a parameter with the copy.
  double copying_share() const { return 30 * copying_parameters_per_s / (28 * traffic_parameters_per_s); }
};

/// Medians over `repeats` passes of each, in turns, over `parameters` elements (18 bytes of memory each).
OptimizerRate bench_optimizer(Exec& ex, int64_t parameters, int repeats);

}  // namespace trainer::bench
