#pragma once
// Tracer: records a timeline of every rank in the steps of log.trace, and writes trace.json into the run's folder.
#include <cstdint>
#include <optional>

#include "comm/world.h"
#include "config/config.h"
#include "train/trainer.h"

namespace trainer::run {

/// Every rank has one and calls the same functions. World and trainer outlive it.
class Tracer {
 public:
  Tracer(comm::World& world, const config::Config& config, train::Trainer& trainer);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  /// Warns where none of the steps that a run makes, first to last, is one to trace.
  void expect_steps(int64_t first, int64_t last) const;
  /// Begins to record before the first of the steps, or before a later one when a run resumes among them. The clocks of
  /// different hosts are then compared. Collective.
  void before_step(int64_t step);
  /// After the last of the steps the file is written. Collective.
  void after_step(int64_t step);
  /// Writes the recorded part if a run ends among the steps. Collective.
  void end();

 private:
  /// Gathers the spans of all ranks. The first one replaces the file; a failure is a warning, since the run goes on.
  void write();

  comm::World& world_;
  const config::Config& config_;
  train::Trainer& trainer_;
  std::optional<Trace> trace_;  // set while steps are recorded
  double origin_ = 0;           // now_seconds() of this rank where the trace begins
};

}  // namespace trainer::run
