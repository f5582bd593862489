#pragma once
// Tracer: records a timeline of every rank in the steps of log.trace, and writes trace.json into the run's folder.
#include <cstdint>
#include <optional>

#include "comm/world.h"
#include "config/config.h"
#include "train/trainer.h"

namespace trainer::run {

/// Every rank has a tracer and calls the same functions. World and trainer must outlive the tracer.
class Tracer {
 public:
  Tracer(comm::World& world, const config::Config& config, train::Trainer& trainer);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  /// Warns if none of the run's steps, `first` to `last`, is to be traced.
  void expect_steps(int64_t first, int64_t last) const;
  /// Starts recording and aligns the clocks of different hosts before the first step to trace, or before a later one if
  /// the run resumes within that range. Collective.
  void before_step(int64_t step);
  /// Writes the file after the last step to trace. Collective.
  void after_step(int64_t step);
  /// Writes the steps recorded so far if the run ends before the last step to trace. Collective.
  void end();

 private:
  /// Gathers the spans of all ranks. Rank 0 replaces the file; a failure is a warning, since the run continues.
  void write();

  comm::World& world_;
  const config::Config& config_;
  train::Trainer& trainer_;
  std::optional<Trace> trace_;  // set while steps are recorded
  double origin_ = 0;           // now_seconds() of this rank at the start of the trace
};

}  // namespace trainer::run
