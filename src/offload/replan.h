#pragma once
// Replanner: chooses the share anew while a run goes on, by rates that follow measured updates.
#include <map>
#include <optional>

#include "offload/clock.h"
#include "offload/lanes.h"

namespace trainer::offload {

class Replanner {
 public:
  /// Begins with rates as they were measured at the start; `subgroups` outlives it.
  Replanner(std::span<const Subgroup> subgroups, const Sizes& sizes, bool bounce, const Rates& rates)
      : subgroups_(subgroups), sizes_(sizes), bounce_(bounce), start_(rates), rates_(rates) {}

  /// Takes in what an update of this plan took. After each 5 updates rates move two thirds of the way to what
  /// operations showed, beside what the virtual clock says of them: so what lanes share is not counted twice. Every 50
  /// updates, or after 5 in a row that were predicted wrongly by more than 15 %, returns the best share at these rates
  /// if it gains more than 5 %.
  std::optional<config::Fraction> observe(const Plan& plan, const Schedule& schedule, const Measured& measured);

  const Rates& rates() const { return rates_; }

 private:
  double predicted(const Plan& plan) const;
  /// Returns the seconds at work by kind that the clock says of all operations of a list; 0: it says nothing.
  const Seconds& expected(const Schedule& schedule);
  /// Moves the rates by what the last few updates took.
  void follow();

  std::span<const Subgroup> subgroups_;
  const Sizes sizes_;
  const bool bounce_;
  const Rates start_;
  Rates rates_;
  std::map<const Schedule*, Seconds> expected_;  // at these rates
  Seconds should_{}, was_{};                     // of the updates since the rates moved
  int moved_ = 0, updates_ = 0, misses_ = 0;     // since then; since the last choice; in a row
};

}  // namespace trainer::offload
