#pragma once
// What the process needs before anything else, and how results leave it.
#include <string>
#include <string_view>

namespace trainer::cli {

/// Output that nobody takes costs output, not the run: writing to a closed pipe (SIGPIPE) or beyond the limit of a
/// file's size (SIGXFSZ) is an error of that write and no longer ends the process. Standard descriptors that are closed
/// are opened so that every use of them fails, and no file of ours gets their number and with it our messages.
void prepare_process();

/// Writes a result to stdout. Throws Code::io when not all of it gets there: a full disk, a pipe that its reader
/// closed.
void print(std::string_view text);
/// Whether everything written to stdout so far got there; says on stderr when not.
bool printed();
/// All of a file, or with "-" of standard input. Throws Code::usage, beginning with `option`, when it cannot be read.
std::string read_input(const std::string& path, const std::string& option);

}  // namespace trainer::cli
