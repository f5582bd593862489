#include "cli/command_text.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "config/keys.h"

namespace trainer::cli {
namespace {

std::vector<std::string> split(const std::string& text, const std::string& by) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(by, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + by.size();
  }
  return parts;
}

/// The values that a set of words allows: "TEXT:{auto,text}" has auto and text.
std::vector<std::string> members(const std::string& type) {
  const size_t open = type.find('{'), close = type.find('}');
  if (open == std::string::npos || close == std::string::npos) return {};
  return split(type.substr(open + 1, close - open - 1), ",");
}

/// The words of a help such as "inspect | verify | strip"; else none.
std::vector<std::string> alternatives(const std::string& help) {
  std::vector<std::string> words = split(help, " | ");
  if (words.size() < 2 || help.find_first_of(",.:") != std::string::npos) words.clear();
  return words;
}

/// Every key of the configuration, as --set takes it.
std::vector<std::string> settings() {
  std::vector<std::string> names;
  for (const config::Key& key : config::keys()) names.push_back(key.path() + "=");
  return names;
}

OptionText describe(const CLI::Option& option) {
  OptionText text;
  for (const std::string& name : option.get_lnames()) text.names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) text.names.push_back("-" + name);
  const std::string type = option.get_type_name();
  if (option.get_type_size() != 0 && option.get_items_expected_max() > 0) {  // flags expect none
    text.value = type.substr(0, type.find_first_of(":{"));
    if (text.value.empty()) text.value = "WORD";
  }
  text.choices = members(type);
  text.help = option.get_description();
  if (text.names.empty()) {
    text.choices = alternatives(text.help);
    text.word = text.choices.empty() ? text.value : option.get_name();
  }
  if (std::ranges::count(text.names, "--set") > 0) text.choices = settings();
  text.initial = option.get_default_str();
  text.several = option.get_items_expected_max() > 1;
  return text;
}

VerbText describe_verb(CLI::App& app) {
  VerbText verb{app.get_name(), app.get_description(), {}};
  for (const CLI::Option* option : app.get_options()) verb.options.push_back(describe(*option));
  return verb;
}

}  // namespace

bool OptionText::names_files() const {
  return choices.empty() &&
         std::ranges::any_of(std::initializer_list<const char*>{"FILE", "PATH", "DIR", "RUN"},
                             [&](const char* kind) { return value.find(kind) != std::string::npos; });
}

CommandText describe(CLI::App& app) {
  CommandText command{describe_verb(app), app.get_footer(), {}};
  for (CLI::App* verb : app.get_subcommands({})) command.verbs.push_back(describe_verb(*verb));
  return command;
}

}  // namespace trainer::cli
