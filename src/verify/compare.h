#pragma once
// Compares the elements that the ranks of a layout hold with the tensors of one rank, within bounds that are derived
// from the arithmetic.
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/snapshot.h"
#include "comm/world.h"
#include "train/trainer.h"

namespace trainer::verify {

/// Whole tensors by name.
using Tensors = std::map<std::string, std::vector<double>>;

/// The parts of each tensor on this rank: those that it owns, so that all ranks together have each element once, and
/// all that it holds, copies included.
struct Parts {
  std::vector<checkpoint::TensorSlice> owned, held;
};
/// Returns the complete gradients of the last step. They point into the trainer's memory.
Parts gradients_of(train::Trainer& trainer);
/// Sets these gradients, of all parameters: value(name, element of the whole tensor).
void set_gradients(train::Trainer& trainer, const std::function<double(const std::string&, int64_t)>& value);
/// With all gradients 1, the squared norm must be the number of parameters: padding (of the vocabulary and of shards)
/// and copies are not counted. Returns what is wrong; empty if nothing is. The trainer must accumulate, so that
/// gradients have memory of their own. Collective.
std::string wrong_norm_of_ones(train::Trainer& trainer);
/// Returns the master weights and the optimizer's states.
Parts state_of(train::Trainer& trainer);
/// Returns the whole tensors; for one rank, which owns every element.
Tensors gather(const std::vector<checkpoint::TensorSlice>& slices);
/// Returns whole tensors as parts that this rank owns and holds. They point into the tensors.
Parts parts_of(Tensors& tensors);
/// An element of a packed tensor in host memory, as f64.
double element_of(const Tensor& tensor, int64_t at);
void set_element(const Tensor& tensor, int64_t at, double value);
/// Calls fn(global index, value) for every element of a slice, converted to f64.
void each_element(const checkpoint::TensorSlice& slice, const std::function<void(int64_t, double)>& fn);

/// The largest difference of a tensor from that of one rank.
struct Bound {
  double norm = 0;     // Frobenius norm of the difference over all ranks
  double element = 0;  // largest difference of one element
};
using Bounds = std::map<std::string, Bound>;

inline constexpr double kRoundoffOfF64 = 0x1p-53;
/// Returns the bounds of a run with unit roundoff u. Two runs of one rank measure how a tensor x amplifies rounding:
///   C = max(1, (‖x32 − x64‖ / ‖x64‖) / 2⁻²⁴);  norm = 16 · C · u · ‖x64‖;  element = 16 · C · u · max |x64| · √n
/// To first order, each implementation that adds the same terms in another order differs by C · u times a factor
/// near 1. A tensor that is 0 must be exactly 0.
Bounds rounding_bounds(const Tensors& f64, const Tensors& f32, double u = kRoundoffOfF64);
/// The same bound of f64 for one number; not finite if a number is not.
double exact_bound(double f64, double f32);
/// Returns the bounds of a layout in another type with unit roundoff u, from one rank's run `one` in that type:
///   norm = 2 · ‖one − x64‖ + 4 · u · ‖x64‖, which bounds single elements, too
/// They say nothing about `one` itself, which rounding_bounds() must bound.
Bounds typed_bounds(const Tensors& f64, const Tensors& one, double u);

/// The worst tensor of a comparison.
struct Comparison {
  int64_t tensors = 0;
  double ratio = 0;  // its difference divided by its bound; above 1: it fails; infinite if either is not finite
  double worst = 0, bound = 0;  // relative to the norm of the tensor
  std::string where;
  std::vector<int> ranks;     // at which it fails, if it does: those with at least half of the largest error
  std::string missing;        // a tensor that the ranks do not hold completely; empty: none
  bool on_all_ranks = false;  // suspect the layout then
  bool passed() const { return ratio <= 1 && missing.empty(); }
};
/// Compares the parts of all ranks with whole tensors, which each rank has computed. Of the ranks' bounds the smallest
/// applies, so that a rank with a wrong reference does not judge other ranks; a rank with a bound that is not finite
/// fails. Only bounds and sums of errors are communicated; all ranks return the same. Collective.
Comparison compare(comm::World& world, const Parts& parts, const Tensors& whole, const Bounds& bounds);

/// Returns each rank's values, in rank order. Collective.
std::vector<std::vector<double>> gather_values(comm::World& world, std::span<const double> values);

}  // namespace trainer::verify
