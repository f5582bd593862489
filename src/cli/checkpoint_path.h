#pragma once
#include <string>
#include <vector>

#include "cli/cli.h"
#include "comm/world.h"

namespace trainer::cli {

/// Returns those of --set that say how the model of a checkpoint computes (run.threads, run.device, precision.compute,
/// hardware.*). All other keys come from the checkpoint: the first rank warns of those of --set that do nothing, which
/// is all but these and the ones that the verb `uses` itself.
std::vector<std::string> computing_sets(const comm::World& world, const std::string& verb, const ConfigOptions& config,
                                        const std::vector<std::string>& uses);

/// Throws Code::usage when neither a checkpoint nor a configuration is given. The parser rejects both.
void require_source(const std::string& verb, const std::string& checkpoint, const ConfigOptions& config);

/// Returns the checkpoint that a verb reads: `checkpoint`, or the checkpoint folder of the run that the configuration
/// describes.
std::string checkpoint_path(const std::string& verb, const std::string& checkpoint, const ConfigOptions& config);

/// Logs which signal stopped the work of all ranks, and returns the exit status.
int stopped(const comm::World& world, const char* what);

}  // namespace trainer::cli
