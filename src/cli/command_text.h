#pragma once
// The command line as data, for shell completion and the manual page.
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace trainer::cli {

/// True if --help lists the verb or action.
bool is_shown(const CLI::App* app);
/// Returns the options of its verb that an action accepts: those that exclude none of its own. Empty for a verb.
std::vector<const CLI::Option*> options_of_verb(const CLI::App& app);
/// Returns all options that a verb or an action accepts.
std::vector<const CLI::Option*> options_at(const CLI::App& app);
/// Returns the placeholder of an option's value, such as FILE or N; empty for a flag.
std::string value_of(const CLI::Option& option);
/// Returns the values that an option accepts; empty if it accepts any.
std::vector<std::string> choices_of(const CLI::Option& option);

/// Returns the completion script for a shell (bash, zsh or fish). The script calls `trainer completion words`.
std::string completion_script(const std::string& shell);
/// Returns the completions of the last of `words` (the command line without the program's name): one per line, as a
/// word, a tab and its help. Empty where the shell should complete a file name.
std::string completions(const CLI::App& app, const std::vector<std::string>& words);
/// Returns the manual page, in roff.
std::string manual(const CLI::App& app, const std::string& version);

}  // namespace trainer::cli
