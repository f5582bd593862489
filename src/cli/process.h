#pragma once
// What the process needs before anything else, and how results leave it.
#include <string>

namespace trainer::cli {

/// Output that nobody takes costs output, not the run: writing to a closed pipe (SIGPIPE) or beyond the limit of a
/// file's size (SIGXFSZ) is an error of that write and no longer ends the process. Standard descriptors that are closed
/// are opened so that every use of them fails, and no file of ours gets their number and with it our messages.
void prepare_process();

}  // namespace trainer::cli
