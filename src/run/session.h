#pragma once
// A whole training run in its folder: data, resuming, the training loop with evaluation, samples and checkpoints, logs,
// summary and report.
#include <cstdint>
#include <string>

#include "comm/world.h"
#include "config/config.h"
#include "run/deadline.h"

namespace trainer::run {

struct SessionOptions {
  int64_t max_steps = 0;  // stops after this many further steps; 0: no limit
  Deadline deadline;      // stops once it has passed
  bool dry_run = false;
  std::string version, commit;  // for the report
};

/// Runs the session. Returns the exit status: 0 if the run finished or stopped at a limit, 75 if it was saved after a
/// signal. Throws Error in all other cases. Collective; rank 0 writes and reports. `config` must be resolved and
/// validated. With dry_run only `plan_text` is set and no file is written.
int run_session(comm::World& world, const config::Config& config, const SessionOptions& options,
                std::string& plan_text);

}  // namespace trainer::run
