#pragma once
// GradSink: where backward passes put weight gradients. The first write of a step overwrites, later ones (further
// micro-batches, the second use of a tied table) add. When the last micro-batch's backward is done with a group, its
// sum over the replicas starts and runs under the backward of the groups before it.
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
  /// `last`: the gradients are complete after this micro-batch.
  void begin_micro(bool last) { last_ = last; }
  GradSlot slot(SlotId id);
  /// The backward pass of this micro-batch writes no more gradients of the group.
  void group_done(Exec& ex, int group);
  /// Joins the sums over replicas (with ZeRO-1 a replica has the sum of the chunk it owns) and returns the norm over
  /// all groups: 65 536-element block sums in f64 over each owned chunk of each group's flat space, added in order of
  /// group, owner and block. The same on every replica, and with or without ZeRO-1.
  GradNorm finish(Exec& ex);

 private:
  /// Index in store.params() of the first non-finite gradient in owned chunks, of all replicas.
  int64_t first_bad(Exec& ex) const;

  ParamStore& store_;
  std::vector<char> written_;
  std::vector<comm::Ticket> sums_;  // by group
  std::vector<int64_t> offsets_;    // of each group's block sums among a replica's
  Buffer blocks_;                   // [replicas, block sums of a replica] f64; unused ones are zero
  Buffer bad_;                      // [1] f64
  bool last_ = false;
};

}  // namespace trainer::params
