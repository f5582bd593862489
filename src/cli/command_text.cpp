#include "cli/command_text.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/format.h"
#include "config/keys.h"

namespace trainer::cli {

using Options = std::vector<const CLI::Option*>;

bool is_shown(const CLI::App* app) { return !app->get_group().empty(); }

Options options_of_verb(const CLI::App& app) {
  if (!app.get_fallthrough()) return {};
  const CLI::App& verb = *app.get_parent();
  const auto is_of_action = [&](const CLI::Option* option) {
    return std::ranges::count(app.get_options(), option) > 0;
  };
  return verb.get_options([&](const CLI::Option* option) {
    return option != verb.get_help_ptr() && std::ranges::none_of(option->get_excludes(), is_of_action);
  });
}

Options options_at(const CLI::App& app) {
  Options options = app.get_options();
  std::ranges::copy(options_of_verb(app), std::back_inserter(options));
  return options;
}

std::string value_of(const CLI::Option& option) {
  if (option.get_type_size() == 0 || option.get_items_expected_max() == 0) return {};  // a flag
  const std::string type = option.get_type_name();
  return type.substr(0, type.find_first_of(":{"));
}

std::vector<std::string> choices_of(const CLI::Option& option) {
  std::vector<std::string> choices;
  if (option.check_lname("set")) {
    for (const config::Key& key : config::keys()) choices.push_back(key.path() + "=");
    return choices;
  }
  const std::string type = option.get_type_name();  // "TEXT:{auto,text}"
  const size_t open = type.find('{'), close = type.find('}');
  if (close == std::string::npos) return {};
  return CLI::detail::split(type.substr(open + 1, close - open - 1), ',');
}

std::string completions(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* at = &app;
  const CLI::Option* open = nullptr;  // the option whose value is the next word
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const auto named = [&](const CLI::App* verb) { return verb->get_name() == words[i]; };
    const std::vector<const CLI::App*> verbs = at->get_subcommands(named);
    if (words[i].starts_with('-')) {
      const Options options = options_at(*at);
      const auto found =
          std::ranges::find_if(options, [&](const auto* option) { return option->check_name(words[i]); });
      open = found != options.end() && !value_of(**found).empty() ? *found : nullptr;
    } else if (open != nullptr) {
      if (open->get_items_expected_max() == 1) open = nullptr;
    } else if (!verbs.empty()) {
      at = verbs.front();
    }
  }
  const std::string word = words.empty() ? "" : words.back();
  std::string text;
  const auto offer = [&](const std::string& candidate, const std::string& help) {
    if (candidate.starts_with(word)) text += format("{}\t{}\n", candidate, help);
  };
  if (word.starts_with('-')) {
    for (const CLI::Option* option : options_at(*at))
      for (const std::string& name : option->get_lnames()) offer("--" + name, option->get_description());
  } else if (open != nullptr) {
    for (const std::string& choice : choices_of(*open)) offer(choice, "");
  } else {
    for (const CLI::App* verb : at->get_subcommands(is_shown)) offer(verb->get_name(), verb->get_description());
  }
  return text;
}

std::string completion_script(const std::string& shell) {
  if (shell == "bash")
    return R"sh(# bash completion of trainer, as `trainer completion bash` prints it.
_trainer() {
  local words=("${COMP_WORDS[@]:1:COMP_CWORD}")
  mapfile -t COMPREPLY < <("${COMP_WORDS[0]}" completion words -- "${words[@]}" 2> /dev/null | cut -f 1)
  if [[ ${COMPREPLY[0]-} == *= ]]; then compopt -o nospace; fi
}
complete -o default -F _trainer trainer
)sh";
  if (shell == "zsh")
    return R"sh(#compdef trainer
# zsh completion of trainer, as `trainer completion zsh` prints it.
_trainer() {
  local -a found
  found=(${(f)"$($words[1] completion words -- "${(@)words[2,CURRENT]}" 2> /dev/null)"})
  found=(${${found//:/\\:}/$'\t'/:})
  if ((#found)); then _describe trainer found; else _files; fi
}
if [[ $funcstack[1] == _trainer ]]; then _trainer; else compdef _trainer trainer; fi
)sh";
  return R"sh(# fish completion of trainer, as `trainer completion fish` prints it.
function __trainer_words
  set -l words (commandline -opc) (commandline -ct)
  set -l found ($words[1] completion words -- $words[2..] 2> /dev/null)
  if test (count $found) -gt 0; printf '%s\n' $found; else; __fish_complete_path (commandline -ct); end
end
complete -c trainer -f -a '(__trainer_words)'
)sh";
}

}  // namespace trainer::cli
