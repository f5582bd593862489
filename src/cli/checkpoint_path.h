#pragma once
#include <string>
#include <vector>

#include "cli/cli.h"
#include "comm/world.h"

namespace trainer::cli {

/// Returns the --set values that select how a checkpoint's model is computed (run.threads, run.device,
/// precision.compute, hardware.*). All other keys come from the checkpoint: rank 0 warns that --set has no effect on
/// them, except on the keys in `uses`, which the verb itself reads.
std::vector<std::string> computing_sets(const comm::World& world, const std::string& verb, const ConfigOptions& config,
                                        const std::vector<std::string>& uses);

/// Throws Code::usage if neither a checkpoint nor a configuration is given. The parser rejects giving both.
void require_source(const std::string& verb, const std::string& checkpoint, const ConfigOptions& config);

/// Returns the checkpoint that a verb reads: `checkpoint`, or if it is empty the checkpoint folder of the
/// configuration's run.
std::string checkpoint_path(const std::string& verb, const std::string& checkpoint, const ConfigOptions& config);

/// Logs which signal stopped the work of all ranks, and returns the exit status.
int stopped(const comm::World& world, const char* what);

}  // namespace trainer::cli
