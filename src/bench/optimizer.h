#pragma once
// Rate of AdamW compared with that of its memory traffic only.
#include <span>
#include <vector>

#include "setup/machine.h"
#include "tensor/exec.h"

namespace trainer::bench {

struct OptimizerRate {
  double parameters_per_s = 0;          // parameters that AdamW updates, with fp32 state
  double gb_per_s = 0;                  // at its 28 bytes a parameter
  double traffic_parameters_per_s = 0;  // of a loop that reads and writes the same bytes and computes nothing
  double copying_parameters_per_s = 0;  // parameters that AdamW updates while it writes a bf16 copy of the weights
  /// Of a loop that reads the 16 bytes of p, m, v and the gradient and writes nothing: no update in place can be
  /// faster. 0 on a GPU.
  double read_parameters_per_s = 0;
  double share() const { return parameters_per_s / traffic_parameters_per_s; }
  /// Returns bytes per second relative to those of the loop: 30 bytes per parameter with the copy.
  double copying_share() const { return 30 * copying_parameters_per_s / (28 * traffic_parameters_per_s); }
};

/// Returns the ranges in which one update of a model is done, as in the trainer: each has one weight decay.
std::vector<int64_t> update_pieces(const config::Config& config, const setup::Machine& machine);

/// Returns medians over `repeats` passes of each, in turns, over arrays with the total number of elements of the pieces
/// (18 bytes of memory each). Every piece is a separate update.
OptimizerRate bench_optimizer(Exec& ex, std::span<const int64_t> pieces, int repeats);

}  // namespace trainer::bench
