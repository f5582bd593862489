#pragma once
// The words of a command line before the parser sees them.
#include <string>
#include <vector>

namespace trainer::cli {

/// Returns the words after the program's name, in a form that the parser knows. `--set a=1 b=2` gives each word with
/// "=" a --set of its own. Throws Code::usage for a first word that is none of `verbs`, and for options before a verb,
/// which would be another command's. `valued`: options of the bare command that take a value.
std::vector<std::string> arguments(int argc, const char* const* argv, const std::vector<std::string>& verbs,
                                   const std::vector<std::string>& valued);

}  // namespace trainer::cli
