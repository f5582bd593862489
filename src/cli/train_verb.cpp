#include "base/error.h"
#include "cli/cli.h"
#include "cli/process.h"
#include "cli/ranks.h"
#include "config/load.h"
#include "config/resolve.h"
#include "run/deadline.h"
#include "run/session.h"

namespace trainer::cli {

int train_command(const TrainOptions& o) {
  const ConfigOptions& options = o.config;
  if (options.file.empty())
    throw Error(Code::usage,
                "no configuration: `trainer --config FILE` (configs/ has examples; `trainer --help` lists the verbs)");
  run::SessionOptions session;
  session.max_steps = o.max_steps;
  // Counted from here, since the configuration, MPI and the planner may take a considerable part of a short job.
  if (!o.max_time.empty()) session.deadline = run::Deadline(run::parse_duration(o.max_time));
  session.dry_run = o.dry_run;
  session.version = version();
  session.commit = commit();
  const auto run = [&](comm::World& world, const config::Config& config) {
    std::string plan;
    try {
      const int status = run::run_session(world, config, session, plan);
      if (world.first()) print(plan);
      return status;
    } catch (const Error&) {  // a plan that does not fit is still useful to read
      if (world.first()) print(plan);
      throw;
    }
  };
  if (!o.dry_run || comm::launched_ranks().value_or(1) > 1) return run_on_ranks(options, run);
  // A dry run plans for all ranks in one process, without mpirun.
  config::Config config = config::load(options.file, options.sets, reading_models({.resume = options.resume}));
  const int64_t ranks = config::fewest_ranks(config);
  config::resolve_world(config, ranks);
  return run(*comm::dry_world(static_cast<int>(ranks)), config);
}

}  // namespace trainer::cli
