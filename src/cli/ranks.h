#pragma once
// The ranks that run a command: processes started by mpirun, threads of this process, or a single rank.
#include <functional>

#include "cli/cli.h"
#include "comm/world.h"
#include "config/load.h"

namespace trainer::cli {

/// Returns `options` extended so that model.init_from may be a folder of Hugging Face files.
config::LoadOptions reading_models(config::LoadOptions options);

/// Reads the configuration and runs `verb` on all its ranks. Rank 0 reads the file and broadcasts its bytes. Without a
/// file the configuration is the defaults with the values of --set. Returns the verb's exit status. An error on one
/// rank ends all ranks with the exit status of that error, which is printed once.
int run_on_ranks(const ConfigOptions& options, const std::function<int(comm::World&, const config::Config&)>& verb);

/// Runs a verb that needs no configuration on all ranks. Throws Code::usage if `requested` differs between ranks.
int run_on_ranks(const std::function<int(comm::World&)>& verb, const comm::Facts& requested);

/// Runs a single-rank verb on rank 0 while the other ranks wait.
int run_on_first_rank(const std::function<int()>& verb, const comm::Facts& requested);

/// Prints an uncaught exception, unless a different rank prints it, and returns the exit status.
int report(const std::exception_ptr& exception, int rank);

}  // namespace trainer::cli
