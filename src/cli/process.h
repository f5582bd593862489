#pragma once
// Process set-up, and output of results.
#include <string>
#include <string_view>

namespace trainer::cli {

/// Prepares the process. Writing to a closed pipe (SIGPIPE) or beyond a file's size limit (SIGXFSZ) no longer ends the
/// process: that write fails. Closed standard descriptors are opened so that every use of them fails. Otherwise a file
/// of ours could get their number, and with it our messages. Control characters in the log are escaped.
void prepare_process();

/// Writes a result to stdout. Throws Code::io when not all of it gets there: a full disk, a pipe that its reader
/// closed.
void print(std::string_view text);
/// Returns whether everything written to stdout so far got there; says on stderr when not.
bool is_output_complete();

}  // namespace trainer::cli
