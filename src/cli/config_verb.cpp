#include <optional>

#include "base/units.h"
#include "cli/cli.h"
#include "cli/process.h"
#include "cli/ranks.h"
#include "config/flops.h"
#include "config/keys.h"
#include "config/layouts.h"
#include "config/load.h"
#include "config/resolve.h"
#include "config/text.h"

namespace trainer::cli {
namespace {

/// Returns the numbers of ranks that the configuration can run on.
std::string ranks_of(const config::Config& config) {
  if (config::find_key("parallel", "shards")->belongs(config.parallel.strategy) &&
      !config::is_given(config, "parallel.shards"))
    return config.parallel.context == 1
               ? format("on any number of ranks per replica that divides micro_batch = {}", config.train.micro_batch)
               : format("on {} x n ranks per replica, where n divides micro_batch = {}", config.parallel.context,
                        config.train.micro_batch);
  const int64_t fewest = config::fewest_ranks(config), most = config.train.global_batch / config.train.micro_batch;
  if (config.parallel.data > 0 || config.parallel.transport == config::Transport::threads || most == 1)
    return "on " + counted(fewest, "rank");
  if (fewest == 1) return format("on any number of ranks that divides global_batch / micro_batch = {}", most);
  return format("on {} ranks per replica; the number of replicas must divide global_batch / micro_batch = {}", fewest,
                most);
}

/// Describes the size of a model with experts, which its keys do not show.
std::string size_of_experts(const config::Config& config) {
  const int64_t vocab = config.data.vocab_size;
  if (config.model.n_expert == 0) return "";
  return format("\n# {} parameters, {} of them active for each token ({})\n",
                format_count(static_cast<double>(parameter_count(config.model, vocab))),
                format_count(static_cast<double>(matmul_weights(config.model, vocab).total())),
                vocab > 0 ? format("with a vocabulary of {}", vocab) : "without embedding and head");
}

}  // namespace

int config_command(const ConfigVerbOptions& o) {
  if (o.what == "reference") {
    print(config::reference());
    return 0;
  }
  config::Config config = config::load(o.config.file, o.config.sets,
                                       reading_models({.world = o.ranks > 0 ? std::optional(o.ranks) : std::nullopt}));
  const std::string text = format("{}: no errors, runs {}\n", o.config.file, ranks_of(config));
  config::resolve_world(config, config::fewest_ranks(config));
  print(o.what == "show" ? config::show(config) + size_of_experts(config) : text);
  return 0;
}

}  // namespace trainer::cli
