#pragma once
// Process set-up, and output of results.
#include <string>
#include <string_view>

namespace trainer::cli {

/// Prepares the process. Writing to a closed pipe (SIGPIPE) or beyond a file's size limit (SIGXFSZ) no longer ends the
/// process: that write fails. Closed standard descriptors are opened so that every use of them fails; otherwise one of
/// our files could get their number and receive our messages. Control characters in the log are escaped.
void prepare_process();

/// Writes a result to stdout. Throws Code::io if it cannot be written completely: a full disk, a pipe whose reader has
/// closed it.
void print(std::string_view text);
/// True if everything written to stdout so far has been accepted; otherwise prints an error to stderr.
bool is_output_complete();

}  // namespace trainer::cli
