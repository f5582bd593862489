#pragma once
// AdamW's rate, compared with that of a loop that only causes the same memory traffic; and the rate of Muon's
// orthogonalization, compared with that of its GEMMs on their own.
#include <span>
#include <vector>

#include "config/model.h"
#include "setup/machine.h"
#include "tensor/exec.h"

namespace trainer::bench {

struct OptimizerRate {
  double parameters_per_s = 0;          // rate of AdamW with fp32 state
  double gb_per_s = 0;                  // the same, at AdamW's 28 bytes per parameter
  double traffic_parameters_per_s = 0;  // rate of a loop that reads and writes the same bytes and computes nothing
  double copying_parameters_per_s = 0;  // rate of AdamW if it also writes a bf16 copy of the weights
  /// Rate of a loop that reads the 16 bytes of p, m, v and the gradient and writes nothing: an upper bound for updates
  /// in place. 0 on a GPU.
  double read_parameters_per_s = 0;
  double bf16_moments_parameters_per_s = 0;  // rate of AdamW if the moments are stored in bf16 (optim.moments)
  double share() const { return parameters_per_s / traffic_parameters_per_s; }
  /// Returns the bandwidth of AdamW with the bf16 copy (30 bytes per parameter) relative to that of the copying loop.
  double copying_share() const { return 30 * copying_parameters_per_s / (28 * traffic_parameters_per_s); }
};

/// Returns the sizes of the ranges in which the trainer updates the model; weight decay is uniform within each.
std::vector<int64_t> update_pieces(const config::Config& config, const setup::Machine& machine);

/// Returns each loop's median over `repeats` passes; the loops take turns. The arrays have as many elements as all
/// pieces together (22 bytes of memory per element). Every piece is updated separately.
OptimizerRate bench_optimizer(Exec& ex, std::span<const int64_t> pieces, int repeats);

/// Newton-Schulz with Jordan's coefficients in five steps (optim/orthogonalize.h).
struct OrthogonalizeRate {
  Shape shape;
  double seconds = 0;
  double gflops = 0;  // FLOPs of its GEMMs, divided by `seconds`
  double share = 0;   // relative to the rate of the same GEMMs without the rest
};
/// Returns medians over `repeats` turns of the orthogonalization and of its GEMMs.
std::vector<OrthogonalizeRate> bench_orthogonalize(Exec& ex, DType dtype, std::span<const Shape> shapes, int repeats);
/// Returns the shapes of a model's hidden matrices, each once.
std::vector<Shape> hidden_shapes(const config::Model& model);

}  // namespace trainer::bench
