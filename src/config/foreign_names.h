#pragma once
#include <functional>
#include <map>
#include <string>

namespace trainer::config {

/// Maps names of keys in other trainers to "section.key" in this program.
const std::map<std::string, std::string, std::less<>>& foreign_names();

/// Maps names of keys in other trainers that have no single equivalent here to what to do instead, for messages.
const std::map<std::string, std::string, std::less<>>& foreign_hints();

/// Maps "section.key" to a hint on what the values of other trainers are called here, for messages about a wrong value.
const std::map<std::string, std::string, std::less<>>& foreign_values();

}  // namespace trainer::config
