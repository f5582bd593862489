#include <cstdio>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/configuration.h"
#include "train/deadline.h"
#include "train/session.h"

namespace trainer::cli {

int train_command(const TrainOptions& o) {
  ConfigOptions options = o.config;
  if (options.file.empty())
    throw Error(Code::usage,
                "no configuration: `trainer --config FILE` (configs/ has examples; `trainer --help` lists the verbs)");
  if (!o.resume.empty()) options.sets.push_back("checkpoint.resume=" + o.resume);
  const config::Config config = load_configuration(options);
  train::SessionOptions session;
  session.max_steps = o.max_steps;
  if (!o.max_time.empty()) session.max_seconds = train::parse_duration(o.max_time);
  session.dry_run = o.dry_run;
  session.version = version();
  session.commit = commit();
  std::string plan;
  const int status = train::run_session(config, session, plan);
  std::fputs(plan.c_str(), stdout);
  return status;
}

}  // namespace trainer::cli
