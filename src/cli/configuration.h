#pragma once
#include "cli/cli.h"
#include "config/config.h"

namespace trainer::cli {

/// Loads the file with the overrides, and resolves and checks it for this world. Throws Code::config with all mistakes.
config::Config load_configuration(const ConfigOptions& options);

}  // namespace trainer::cli
