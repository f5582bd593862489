#pragma once
// Obstacles: the layouts of a plan whose step cannot be built. They are reported and never end the plan.
#include <optional>

#include "base/error.h"
#include "base/units.h"
#include "plan/pricing.h"

namespace trainer::plan {

class Obstacles {
 public:
  /// Calls work(run). If it throws an Error, records it as the run's obstacle and returns false. Thread-safe for
  /// different runs.
  template <typename F>
  static bool attempt(PlannedRun& run, F&& work) {
    try {
      work(run);
    } catch (const Error& error) {
      run.obstacle = error;
    }
    return !run.obstacle;
  }

  void count(const PlannedRun& run) {
    if (count_++ == 0) first_.emplace(run);
  }
  int64_t count() const { return count_; }
  /// Throws the first obstacle if there is one.
  void throw_first() const {
    if (first_) throw *first_->obstacle;
  }
  /// Returns "3 layouts, which cannot be built (axonn-4d with grid 2 x 2 x 1, data 1: …)".
  std::string text() const {
    const Error& error = *first_->obstacle;
    return format("{}, which cannot be built ({}{} with {}: {})", counted(count_, "layout"),
                  error.code() == Code::internal ? "a bug, please report it: " : "", first_->strategy, first_->layout,
                  error.what());
  }

 private:
  int64_t count_ = 0;
  std::optional<PlannedRun> first_;
};

}  // namespace trainer::plan
