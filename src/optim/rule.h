#pragma once
// Rule: a kind of update, such as AdamW. Each parameter is updated by one rule. A rule holds no memory: it names the
// states that a ParamStore keeps next to the master weights of its parameters.
#include <memory>
#include <span>
#include <vector>

#include "optim/optimizer.h"
#include "optim/selection.h"
#include "params/param_store.h"

namespace trainer::optim {

/// A range of elements to update: master weights, the rule's states in their order, gradients, and a copy of the
/// weights in a different type to refresh, or an empty tensor.
struct UpdateRange {
  Tensor p;
  std::span<const Tensor> states;
  Tensor g, compute;
  int64_t whole = 0;  // elements that are updated one after the other, if they are more than these
};

/// The updates of one rule's parameters on this rank.
class Updater {
 public:
  virtual ~Updater() = default;
  /// Begins work that can overlap with the updates of other rules.
  virtual void start(Exec&, const Update&) {}
  /// Updates this rule's elements of a group. Called once for each group, in order.
  virtual void finish(Exec& ex, const Update& update, int group) = 0;
  /// Updates this rule's elements in a part of those that a group holds, with the same bits whatever the parts.
  /// Thread-safe for different parts. Only for rules that update each element on its own.
  virtual void update(Exec& ex, const Update& update, int group, comm::Chunk part);
};

class Rule {
 public:
  virtual ~Rule() = default;
  /// True if the rule can update this parameter.
  virtual bool takes(const params::Param& param) const = 0;
  virtual std::vector<params::StateSpec> states() const = 0;
  /// Returns the memory traffic of an update in bytes per element: weights, states and gradients, but no copy of the
  /// weights in a different type.
  virtual int64_t traffic() const = 0;
  /// Creates the updater of the selected parameters, whose memory is allocated. The rule and `store` must outlive it.
  virtual std::unique_ptr<Updater> make(params::ParamStore& store, Selection selection) const = 0;
  /// Updates any range of elements, with the same bits wherever they are stored: for offload. Only for rules that
  /// update each element on its own.
  virtual void update(Exec& ex, const Update& update, bool decay, const UpdateRange& range) const;
};

/// Returns the bytes of a rule's states per element.
int64_t state_bytes(const Rule& rule);

}  // namespace trainer::optim
