#include <CLI/CLI.hpp>

#include "base/format.h"
#include "base/join.h"
#include "cli/command_text.h"
#include "cli/options.h"
#include "config/suggest.h"

namespace trainer::cli {
namespace {

std::vector<std::string> names_of(const std::vector<const CLI::App*>& verbs) {
  std::vector<std::string> names;
  for (const CLI::App* verb : verbs) names.push_back(verb->get_name());
  return names;
}

/// Describes a word that is not accepted at this position.
std::string unexpected(const CLI::App& at, const std::string& command, const std::string& word) {
  if (!word.starts_with('-')) {
    const std::vector<std::string> known = names_of(at.get_subcommands(is_shown));
    const std::string remedy =
        word.ends_with(".toml") ? "; a configuration is given as --config FILE" : config::did_you_mean(word, known);
    if (known.empty()) return format("`{}`: unexpected word \"{}\"{}", command, word, remedy);
    return format("`{} {}`: expected one of {}{}", command, word, fmt::join(known, ", "), remedy);
  }
  const std::string name = word.substr(0, word.find('='));
  const auto takes = [&](const CLI::App* other) { return other->get_option_no_throw(name) != nullptr; };
  const CLI::App& parent = at.get_parent() != nullptr ? *at.get_parent() : at;
  if (const std::vector<const CLI::App*> others = parent.get_subcommands(takes); !others.empty())
    return format("{} is an option of `{}`, not of `{}`", name, fmt::join(names_of(others), "`, `"), command);
  std::vector<std::string> known;
  for (const CLI::Option* option : options_at(at)) known.push_back(option->get_name());
  return format("unknown option {}{}", word, config::did_you_mean(name, known));
}

}  // namespace

std::string mistake(const CLI::App* app, const CLI::Error& error) {
  const std::vector<std::string> rest = app->remaining(true);
  std::string command = app->get_name();
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
    command += " " + app->get_name();
  }
  std::string what = error.what();
  if (!rest.empty())
    what = unexpected(*app, command, rest.front());
  else if (app->get_require_subcommand_min() > 0)
    what = format("`{}`: expected one of {}", command, fmt::join(names_of(app->get_subcommands(is_shown)), ", "));
  return format("trainer: {}\nsee `{} --help`\n", what, command);
}

}  // namespace trainer::cli
