#include <algorithm>

#include "base/error.h"
#include "base/join.h"
#include "cli/command_text.h"

namespace trainer::cli {
namespace {

using Words = std::vector<std::string>;

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

/// A text in single quotes, as POSIX shells read it.
std::string quoted(const std::string& text) { return "'" + replaced(text, "'", "'\\''") + "'"; }

/// The first sentence or clause of a help, for a list of candidates.
std::string in_short(const std::string& help) {
  const size_t end = help.find_first_of(";:(");
  return help.substr(0, help.find_last_not_of(' ', end == std::string::npos ? end : end - 1) + 1);
}

Words names_of(const CommandText& command) {
  Words names;
  for (const VerbText& verb : command.verbs) names.push_back(verb.name);
  return names;
}

// --- bash: words are completed from lists, and by file names where there is none.

std::string bash_case(const VerbText& verb) {
  Words options, words;
  std::string values;
  for (const OptionText& option : verb.options) {
    options.insert(options.end(), option.names.begin(), option.names.end());
    if (option.names.empty()) words = option.choices;
    if (option.names.empty() || option.value.empty()) continue;
    values += format("        {}) words={}; options='' ;;\n", fmt::join(option.names, "|"),
                     quoted(format("{}", fmt::join(option.choices, " "))));
  }
  return format("      options={}\n      words={}\n      case $before in\n{}      esac\n",
                quoted(format("{}", fmt::join(options, " "))), quoted(format("{}", fmt::join(words, " "))), values);
}

std::string bash(const CommandText& command) {
  std::string text = format(
      "# bash completion of {0}, as `{0} completion bash` prints it.\n"
      "_{0}() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} options words\n"
      "  case ${{COMP_WORDS[1]}} in\n",
      command.name);
  for (const VerbText& verb : command.verbs) text += format("    {})\n{}      ;;\n", verb.name, bash_case(verb));
  text += format("    *)\n{}      ;;\n  esac\n", bash_case(command));
  text += format("  if ((COMP_CWORD == 1)); then words+={}; fi\n",
                 quoted(format(" {}", fmt::join(names_of(command), " "))));
  text += format(
      "  if [[ $word == -* ]]; then words=$options; fi\n"
      "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
      "  if [[ ${{COMPREPLY[0]-}} == *= ]]; then compopt -o nospace; fi\n"
      "}}\n"
      "complete -o default -F _{0} {0}\n",
      command.name);
  return text;
}

// --- zsh

std::string zsh_help(const std::string& help) {
  std::string text;
  for (const char c : in_short(help)) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') text += '\\';
    text += c;
  }
  return text;
}

/// What _arguments takes after a colon: how a value is completed.
std::string zsh_values(const OptionText& option) {
  if (!option.choices.empty()) return format("({})", fmt::join(option.choices, " "));
  return option.names_files() ? "_files" : "";
}

std::string zsh_arguments(const VerbText& verb) {
  std::string text;
  for (const OptionText& option : verb.options) {
    const std::string value =
        option.value.empty() ? "" : format(":{}:{}", replaced(option.value, ":", "\\:"), zsh_values(option));
    if (option.names.empty()) text += " \\\n    " + quoted((option.several ? "*" : "1") + value);
    for (const std::string& name : option.names) {
      const std::string others = option.several ? "*" : format("({})", fmt::join(option.names, " "));
      text += " \\\n    " + quoted(format("{}{}[{}]{}", others, name, zsh_help(option.help), value));
    }
  }
  return text;
}

std::string zsh(const CommandText& command) {
  std::string text = format(
      "#compdef {0}\n# zsh completion of {0}, as `{0} completion zsh` prints it.\n"
      "_{0}() {{\n"
      "  local state line\n"
      "  local -a verbs\n"
      "  typeset -A opt_args\n"
      "  verbs=(\n",
      command.name);
  for (const VerbText& verb : command.verbs) text += format("    {}\n", quoted(verb.name + ":" + zsh_help(verb.help)));
  text += format("  )\n  _arguments -C{} \\\n    '1: :->verb' '*:: :->rest'\n", zsh_arguments(command));
  text += "  case $state in\n    verb) _describe verb verbs ;;\n    rest)\n      case $words[1] in\n";
  for (const VerbText& verb : command.verbs)
    text += format("        {}) _arguments{} ;;\n", verb.name, replaced(zsh_arguments(verb), "\n    ", "\n          "));
  return text + format("      esac ;;\n  esac\n}}\n_{0} \"$@\"\n", command.name);
}

// --- fish

std::string fish_quoted(const std::string& text) {
  return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

std::string fish_options(const CommandText& command, const VerbText& verb, const std::string& condition) {
  std::string text;
  for (const OptionText& option : verb.options) {
    text += format("complete -c {} -n {}", command.name, fish_quoted(condition));
    for (const std::string& name : option.names)
      text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    if (!option.value.empty() && !option.names.empty()) text += option.names_files() ? " -r -F" : " -x";
    if (!option.choices.empty()) text += " -a " + fish_quoted(format("{}", fmt::join(option.choices, " ")));
    if (option.names.empty() && option.choices.empty()) text += " -F";
    text += format(" -d {}\n", fish_quoted(in_short(option.help)));
  }
  return text;
}

std::string fish(const CommandText& command) {
  std::string text =
      format("# fish completion of {0}, as `{0} completion fish` prints it.\ncomplete -c {0} -f\n", command.name);
  for (const VerbText& verb : command.verbs)
    text += format("complete -c {} -n __fish_use_subcommand -a {} -d {}\n", command.name, verb.name,
                   fish_quoted(in_short(verb.help)));
  text += fish_options(command, command, "__fish_use_subcommand");
  for (const VerbText& verb : command.verbs)
    text += fish_options(command, verb, "__fish_seen_subcommand_from " + verb.name);
  return text;
}

}  // namespace

std::string completion(const CommandText& command, const std::string& shell) {
  if (shell == "bash") return bash(command);
  if (shell == "zsh") return zsh(command);
  if (shell == "fish") return fish(command);
  throw Error(Code::usage, format("`{} completion {}`: expected one of bash, zsh, fish", command.name, shell));
}

}  // namespace trainer::cli
