#pragma once
// A whole training run in its folder: data, resume, the loop of steps with evaluation, samples and checkpoints, logs,
// summary and report.
#include <cstdint>
#include <string>

#include "comm/world.h"
#include "config/config.h"

namespace trainer::run {

struct SessionOptions {
  int64_t max_steps = 0;   // stop after this many further steps; 0: no limit
  double max_seconds = 0;  // stop after this time, preparation of data included; 0: no limit
  bool dry_run = false;
  std::string version, commit;  // for the report
};

/// Returns the exit status: 0 finished (or stopped at a limit), 75 saved after a signal. Throws Error for everything
/// else. Every rank of `world` calls it; the first one writes and reports. `config` resolved and validated. With
/// dry_run the plan goes to `plan_text` and nothing is written.
int run_session(comm::World& world, const config::Config& config, const SessionOptions& options,
                std::string& plan_text);

}  // namespace trainer::run
