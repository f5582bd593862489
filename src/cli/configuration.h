#pragma once
#include "cli/cli.h"
#include "config/config.h"

namespace trainer::cli {

/// The file with the overrides, resolved and checked for the world at hand. Throws Code::config with all mistakes.
config::Config load_configuration(const ConfigOptions& options);

}  // namespace trainer::cli
