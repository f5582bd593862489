#pragma once
// Rules that update each element on its own, in one pass over the flat buffers. The formulas are in ops/rules/; a table
// (rows.cpp) says which of them a configuration selects, and what their scalars are.
#include <array>
#include <limits>
#include <span>

#include "config/optim.h"
#include "ops/update.h"
#include "optim/rule.h"

namespace trainer::optim {

/// The parts of a configuration that rules use.
struct Settings {
  config::Optim optim;
  config::Sgd sgd = {};
  bool round_gradients = false;  // to bf16 first, to match runs that send gradients to the host in bf16
  std::array<double, kClasses> lr_ratios = {1, 1, 1, 1};  // relative to the schedule's; by ParamClass
};

/// Returns Step::floor.
inline double floor_of(config::Decay decay) {
  return decay == config::Decay::cautious ? 0 : -std::numeric_limits<double>::infinity();
}

/// An update of the parameters of one class.
struct Step {
  double lr = 0;
  double negative_decay = 0;  // −lr·weight decay; 0 without decay
  double floor = 0;           // only elements with update·weight at or above this decay
};

/// A row of the table.
struct Row {
  ops::RuleId id;
  std::string_view name;  // the value of optim.name
  /// The first row for which it is true is used; the last one is for all others, those that Muon leaves among them.
  bool (*is_selected)(const Settings& settings);
  /// See Rule::agreed().
  std::optional<Agreed> (*agreed)(const Settings& settings, int64_t t);
  /// Writes the scalars of an update, computed in double, by the rule's enumeration.
  void (*scalars)(const Settings& settings, const Update& update, const Step& step, double* k);
};
std::span<const Row> rows();

/// A range of elements to update: master weights, the rule's states in their order, gradients, and a copy of the
/// weights in a different type to refresh, or an empty tensor.
struct UpdateRange {
  Tensor p;
  std::span<const Tensor> states;
  Tensor g, compute;
  int64_t whole = 0;  // elements that are updated one after the other, if they are more than these
};

class ElementwiseRule final : public Rule {
 public:
  /// `master` is the type of the master weights. The row must outlive the rule.
  ElementwiseRule(const Row& row, Settings settings, DType master)
      : row_(row), settings_(std::move(settings)), master_(master) {}

  const Row& row() const { return row_; }
  std::string_view name() const override { return row_.name; }
  bool takes(const params::Param&) const override { return true; }
  std::vector<params::StateSpec> states() const override;
  int64_t traffic() const override { return 3 * size_of(master_) + 2 * state_bytes(*this); }
  std::optional<Agreed> agreed(int64_t t) const override { return row_.agreed(settings_, t); }
  const ElementwiseRule* elementwise() const override { return this; }
  std::unique_ptr<Updater> make(params::ParamStore& store, Selection selection) const override;
  /// Updates any range of elements of one class, with the same bits wherever they are stored.
  void update(Exec& ex, const Update& update, ParamClass of, const UpdateRange& range) const;

 private:
  const Row& row_;
  const Settings settings_;
  const DType master_;
};
/// Creates the rule that optim.name selects, or for Muon that of the parameters that it does not take.
std::unique_ptr<ElementwiseRule> elementwise_rule(const Settings& settings, DType master);

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
