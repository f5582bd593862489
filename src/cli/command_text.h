#pragma once
// The command line as data, taken from the declarations that --help prints: for shells' completion and the manual page.
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace trainer::cli {

struct OptionText {
  std::vector<std::string> names;    // "--config", "-c"; of a word without dashes: none
  std::string word;                  // what stands for such a word
  std::string value;                 // what stands for the value: FILE, N; of a flag: empty
  std::vector<std::string> choices;  // the values there are; empty: any
  std::string help, initial;         // initial: the default, where --help shows it
  bool several = false;              // takes several values, or may be repeated

  bool names_files() const;
};

struct VerbText {
  std::string name, help;
  std::vector<OptionText> options;
};

/// Its own options are those of the command without a verb.
struct CommandText : VerbText {
  std::string footer;
  std::vector<VerbText> verbs;
};

CommandText describe(CLI::App& app);

/// Returns the script that completes the command's words in a shell: bash, zsh or fish. Throws Code::usage for another.
std::string completion(const CommandText& command, const std::string& shell);
/// Returns the manual page, in roff.
std::string manual(const CommandText& command, const std::string& version);

}  // namespace trainer::cli
