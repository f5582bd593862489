#include "cli/checkpoint_path.h"

#include <algorithm>

#include "base/error.h"
#include "base/join.h"
#include "base/log.h"
#include "cli/ranks.h"
#include "config/load.h"
#include "config/resolve.h"
#include "run/signals.h"

namespace trainer::cli {

std::vector<std::string> computing_sets(const comm::World& world, const std::string& verb, const ConfigOptions& config,
                                        const std::vector<std::string>& uses) {
  const std::vector<std::string> computing = {"run.threads", "run.device", "precision.compute"};
  std::vector<std::string> taken, idle;
  for (const std::string& set : config.sets) {
    const std::string key = set.substr(0, set.find_first_of(" ="));
    if (key.starts_with("hardware.") || std::ranges::count(computing, key) > 0)
      taken.push_back(set);
    else if (std::ranges::none_of(uses, [&](const auto& use) { return key == use || key.starts_with(use + "."); }))
      idle.push_back(key);
  }
  if (world.first() && !idle.empty())
    log::warning("--set {}: has no effect on `{}`, which reads the model and its keys from the checkpoint; remove it",
                 fmt::join(idle, " "), verb);
  return taken;
}

void require_source(const std::string& verb, const std::string& checkpoint, const ConfigOptions& config) {
  if (checkpoint.empty() && config.file.empty())
    throw Error(Code::usage,
                format("`{}` requires --checkpoint PATH (a step folder, a checkpoints folder or a run folder) or "
                       "--config FILE (for the newest checkpoint of its run)",
                       verb));
}

std::string checkpoint_path(const std::string& verb, const std::string& checkpoint, const ConfigOptions& config) {
  require_source(verb, checkpoint, config);
  if (!checkpoint.empty()) return checkpoint;
  return config::checkpoint_folder(config::load(config.file, config.sets, reading_models({.files = false}))).string();
}

int stopped(const comm::World& world, const char* what) {
  if (world.first()) log::info("{} stopped by {}", what, run::signal_name(run::stop_signal()));
  return run::kStoppedBySignal;
}

}  // namespace trainer::cli
