#pragma once
// Rule: a kind of update, such as AdamW. Each parameter is updated by one rule. A rule holds no memory: it names the
// states that a ParamStore keeps next to the master weights of its parameters.
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "ops/update.h"
#include "optim/optimizer.h"
#include "optim/selection.h"
#include "params/param_store.h"

namespace trainer::optim {

class ElementwiseRule;

/// The updates of one rule's parameters on this rank.
class Updater {
 public:
  virtual ~Updater() = default;
  /// Begins work that can overlap with the updates of other rules.
  virtual void start(Exec&, const Update&) {}
  /// Updates this rule's elements of a group. Called once for each group, in order.
  virtual void finish(Exec& ex, const Update& update, int group) = 0;
};

class Rule {
 public:
  virtual ~Rule() = default;
  /// Returns the value of optim.name that selects the rule.
  virtual std::string_view name() const = 0;
  /// True if the rule can update this parameter.
  virtual bool takes(const params::Param& param) const = 0;
  /// Returns at most kMostStates states.
  virtual std::vector<params::StateSpec> states() const = 0;
  /// Returns the memory traffic of an update in bytes per element: weights, states and gradients, but no copy of the
  /// weights in a different type.
  virtual int64_t traffic() const = 0;
  /// Returns the values of update `t` that depend on the C library, whose powers differ in the last bit between CPU
  /// types; empty: there are none. A run takes them from its first rank (Update::agreed). All other scalars follow from
  /// an Update by correctly rounded operations, so each rank computes them.
  virtual std::optional<Agreed> agreed(int64_t /*t*/) const { return {}; }
  /// Returns this rule if it updates each element on its own, so that its states can be offloaded and its updates
  /// divided anywhere; otherwise null.
  virtual const ElementwiseRule* elementwise() const { return nullptr; }
  /// True if the bits of an update depend on the kernels of the rank that computes it.
  virtual bool needs_same_kernels() const { return false; }
  /// Creates the updater of the selected parameters, whose memory is allocated. The rule and `store` must outlive it.
  virtual std::unique_ptr<Updater> make(params::ParamStore& store, Selection selection) const = 0;
};

using ops::kMostStates;

/// Returns the bytes of a rule's states per element.
int64_t state_bytes(const Rule& rule);

}  // namespace trainer::optim
