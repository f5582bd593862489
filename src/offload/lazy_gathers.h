#pragma once
// LazyGathers: with ZeRO-1 each replica updates its own chunk of the weights. The chunks are all-gathered when the next
// pass first reads them, so that updates overlap with that pass, as they do without replicas.
#include <functional>
#include <memory>
#include <vector>

#include "params/param_store.h"

namespace trainer::offload {

class LazyGathers {
 public:
  explicit LazyGathers(params::ParamStore& store);
  /// Joins gathers in flight.
  ~LazyGathers();

  /// Marks the start of an update, after which all groups must be gathered. Counts the gathers in ex.meter immediately,
  /// so that they belong to the step of the update.
  void begin(Exec& ex);
  /// Returns when the weights of `group` have arrived from all replicas. Gathers start in the order of the groups on
  /// every rank, each after `wait` has returned, which waits for the update of this rank's chunk of a group. On return,
  /// the gather of the next group is in flight. Collective: every rank must call this for the same groups in the same
  /// order.
  void finish(int group, const std::function<void(int group)>& wait);
  /// Joins gathers in flight and drops the others, since the weights were overwritten.
  void drop();

 private:
  void start(int last, const std::function<void(int group)>& wait);

  params::ParamStore& store_;
  const std::unique_ptr<device::Device> dry_;
  Arena none_, none_dry_;
  Meter counted_;  // discarded: begin() has counted the gathers already
  Exec ex_;
  std::vector<comm::Ticket> tickets_;  // by group
  int started_;                        // number of groups whose gathers have started
};

}  // namespace trainer::offload
