#pragma once
#include <functional>
#include <map>
#include <string>

namespace trainer::config {

/// Returns names of keys in other trainers, and the "section.key" of this program.
const std::map<std::string, std::string, std::less<>>& foreign_names();

/// Returns what other trainers' values of a key ("section.key") are called here: the end of a message about a wrong
/// value.
const std::map<std::string, std::string, std::less<>>& foreign_values();

/// Returns keys of earlier versions, as "section.key", and the behaviour that replaces them. Files that contain them
/// still load.
const std::map<std::string, std::string, std::less<>>& removed_keys();

}  // namespace trainer::config
