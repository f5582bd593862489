#pragma once
// Ranks that run a command: processes that mpirun started, threads of this process, or just one.
#include <functional>

#include "cli/cli.h"
#include "comm/world.h"
#include "config/load.h"

namespace trainer::cli {

/// Returns options with which model.init_from may be a folder of Hugging Face files.
config::LoadOptions reading_models(config::LoadOptions options);

/// Reads the configuration and runs `verb` on all its ranks. Rank 0 reads the file and broadcasts its bytes. Without a
/// file the configuration is defaults and --set. Returns the verb's exit status. An error of one rank ends all of them
/// with its status; it is printed once.
int run_on_ranks(const ConfigOptions& options, const std::function<int(comm::World&, const config::Config&)>& verb);

/// Runs a verb that needs no configuration, on all ranks that were started. `asked` must be the same on all of them.
int run_on_ranks(const std::function<int(comm::World&)>& verb, const comm::Facts& asked);

/// Runs a verb that needs one rank on rank 0, while the other ranks wait for it.
int run_on_first_rank(const std::function<int()>& verb, const comm::Facts& asked);

/// Prints an exception that reached main, depending on the rank that threw it, and returns the exit status.
int report(const std::exception_ptr& exception, int rank);

}  // namespace trainer::cli
