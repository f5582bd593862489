#include <cstdio>

#include "cli/cli.h"
#include "cli/configuration.h"
#include "cli/later.h"
#include "config/load.h"
#include "config/text.h"

namespace trainer::cli {

config::Config load_configuration(const ConfigOptions& options) {
  return config::load(options.file, options.sets, {.world = 1});
}

int config_command(const ConfigVerbOptions& o) {
  if (o.what == "reference") {
    std::fputs(config::reference().c_str(), stdout);
    return 0;
  }
  if (o.what != "check" && o.what != "show") throw unknown_word("config", o.what, "check, show, reference");
  if (o.config.file.empty()) throw Error(Code::usage, format("`config {}` needs --config FILE", o.what));
  const config::Config config = load_configuration(o.config);
  std::fputs(
      o.what == "show" ? config::show(config).c_str() : format("{}: no mistakes, on one rank\n", o.config.file).c_str(),
      stdout);
  return 0;
}

}  // namespace trainer::cli
