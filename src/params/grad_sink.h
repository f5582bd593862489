#pragma once
// GradSink: where backward passes put weight gradients. The first write of a step overwrites, later ones (further
// micro-batches, the second use of a tied table) add; `ready` says that a micro-batch's contribution is complete.
#include <string>
#include <vector>

#include "params/param_store.h"

namespace trainer::params {

struct GradSlot {
  Tensor tensor;    // accumulator type, the slot's local shape
  bool accumulate;  // add instead of overwriting
};

struct GradNorm {
  double norm = 0;         // of all gradients, before clipping
  std::string bad_tensor;  // first tensor with a non-finite gradient, in declaration order
  bool finite() const { return bad_tensor.empty(); }
  /// min(1, max_norm / (norm + 1e-6)); 1 when max_norm is 0.
  double clip(double max_norm) const { return max_norm <= 0 ? 1.0 : std::min(1.0, max_norm / (norm + 1e-6)); }
};

class GradSink {
 public:
  explicit GradSink(ParamStore& store);

  /// Takes the memory of the norm's block sums; before the first finish.
  void prepare(device::Device& device);
  void begin_step();
  GradSlot slot(SlotId id);
  /// Norm over all groups: 65 536-element block sums in f64 over each group's flat space, added in order.
  GradNorm finish(Exec& ex);

 private:
  ParamStore& store_;
  std::vector<char> written_;
  std::vector<Buffer> blocks_;  // per group, f64
};

}  // namespace trainer::params
