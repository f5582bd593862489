#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/process.h"
#include "cli/ranks.h"
#include "config/layouts.h"
#include "data/source.h"
#include "plan/prediction.h"
#include "verify/verify.h"

namespace trainer::cli {

int verify_command(const VerifyOptions& o) {
  verify::Options options{.full = o.full, .only = o.only};
  if (o.minutes > 0) {
    options.seconds = 60 * static_cast<double>(o.minutes);
    options.burn_in = true;
  } else if (o.full) {
    options.seconds = verify::kNoLimit;
  }
  ConfigOptions on = o.config;
  const bool on_threads = comm::launched_ranks().value_or(1) <= 1;
  if (on_threads) on.sets.insert(on.sets.begin(), "parallel.transport=threads");
  return run_on_ranks(on, [&](comm::World& world, const config::Config& requested) {
    config::Config config = requested;
    if (on_threads && world.size() > verify::kMostThreads)
      throw Error(Code::usage, format("the layout has {} ranks, but at most {} can be threads; start them with mpirun "
                                      "-np {}",
                                      world.size(), verify::kMostThreads, world.size()))
          .on(Scope::all_ranks);
    if (on_threads && world.first() && config.parallel.data == 0)
      log::info("parallel.data = 0 is one replica here; under mpirun, the replicas are checked that it starts");
    if (config::is_automatic(config))
      config = plan::choose_strategy(world, config, std::nullopt, data::planned_vocab(config),
                                     setup::choose_machine(config, world));
    const verify::Report report = verify::verify(world, config, options);
    if (world.first()) {
      nlohmann::json document = verify::to_json(report);
      document["version"] = version();
      document["commit"] = commit();
      print(o.json ? json_text(document) + "\n" : verify::to_text(report));
    }
    return verify::exit_status_of(report);
  });
}

}  // namespace trainer::cli
