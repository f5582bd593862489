#pragma once
// Rules that update each element on its own, in one pass over the flat buffers.
#include <span>

#include "optim/rule.h"

namespace trainer::optim {

/// A range of elements to update: master weights, the rule's states in their order, gradients, and a copy of the
/// weights in a different type to refresh, or an empty tensor.
struct UpdateRange {
  Tensor p;
  std::span<const Tensor> states;
  Tensor g, compute;
  int64_t whole = 0;  // elements that are updated one after the other, if they are more than these
};

class ElementwiseRule : public Rule {
 public:
  /// `master` is the type of the master weights.
  explicit ElementwiseRule(DType master) : master_(master) {}

  bool takes(const params::Param&) const override { return true; }
  int64_t traffic() const override { return 3 * size_of(master_) + 2 * state_bytes(*this); }
  const ElementwiseRule* elementwise() const override { return this; }
  std::unique_ptr<Updater> make(params::ParamStore& store, Selection selection) const override;
  /// Updates any range of elements, with the same bits wherever they are stored.
  virtual void update(Exec& ex, const Update& update, bool decay, const UpdateRange& range) const = 0;

 private:
  const DType master_;
};

class ElementwiseUpdater final : public Updater {
 public:
  ElementwiseUpdater(const ElementwiseRule& rule, params::ParamStore& store, Selection selection)
      : rule_(rule), states_(rule.states()), store_(store), selection_(std::move(selection)) {}

  void finish(Exec& ex, const Update& update, int group) override;
  /// Updates the selected elements in a part of those that a group holds, with the same bits whatever the parts.
  /// Thread-safe for different parts.
  void update(Exec& ex, const Update& update, int group, comm::Chunk part) const;

 private:
  const ElementwiseRule& rule_;
  const std::vector<params::StateSpec> states_;
  params::ParamStore& store_;
  const Selection selection_;
};

}  // namespace trainer::optim
