#pragma once
#include <string>

#include "cli/cli.h"

namespace trainer::cli {

/// Returns the checkpoint that a verb reads: `checkpoint`, or the checkpoint folder of the run that the configuration
/// describes. Throws Code::usage unless exactly one of the two is given.
std::string checkpoint_path(const std::string& verb, const std::string& checkpoint, const ConfigOptions& config);

}  // namespace trainer::cli
