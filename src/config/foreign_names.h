#pragma once
#include <functional>
#include <map>
#include <string>

namespace trainer::config {

/// Names of keys in other trainers: their name, and "section.key" of ours.
const std::map<std::string, std::string, std::less<>>& foreign_names();

/// Keys of earlier versions, as "section.key", and the behaviour that replaces them. Files that name them still load.
const std::map<std::string, std::string, std::less<>>& removed_keys();

}  // namespace trainer::config
