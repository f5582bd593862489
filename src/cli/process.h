#pragma once
// Process set-up, and output of results.
#include <string_view>

namespace trainer::cli {

/// Prepares the process. A write to a closed pipe (SIGPIPE) or beyond the file size limit (SIGXFSZ) fails instead of
/// killing the process. Standard descriptors that are closed are opened so that every use of them fails: a data file
/// could otherwise be opened under the number of stderr and receive messages. Control characters in the log are
/// escaped.
void prepare_process();

/// Writes a result to stdout. Throws Code::io if it cannot be written completely, as on a full disk or to a pipe that
/// its reader has closed.
void print(std::string_view text);
/// Returns `status`, for main() to return. If a thread still runs work that was given up (base/interruptible.h), ends
/// the process instead.
int exit_with(int status);

/// True if everything written to stdout so far has been accepted; otherwise prints an error to stderr.
bool is_output_complete();

}  // namespace trainer::cli
