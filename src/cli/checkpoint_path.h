#pragma once
#include <string>
#include <vector>

#include "cli/cli.h"
#include "comm/world.h"

namespace trainer::cli {

/// Returns the values of --set that define how a checkpoint's model is computed (run.threads, run.device,
/// precision.compute, hardware.*). All other keys come from the checkpoint. Rank 0 warns about other --set keys, which
/// have no effect unless the verb itself `uses` them.
std::vector<std::string> computing_sets(const comm::World& world, const std::string& verb, const ConfigOptions& config,
                                        const std::vector<std::string>& uses);

/// Throws Code::usage when neither a checkpoint nor a configuration is given. The parser rejects both together.
void require_source(const std::string& verb, const std::string& checkpoint, const ConfigOptions& config);

/// Returns the checkpoint that a verb reads: `checkpoint`, or the checkpoint folder of the run that the configuration
/// describes.
std::string checkpoint_path(const std::string& verb, const std::string& checkpoint, const ConfigOptions& config);

/// Logs which signal stopped the work of all ranks, and returns the exit status.
int stopped(const comm::World& world, const char* what);

}  // namespace trainer::cli
