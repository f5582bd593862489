#pragma once
#include <functional>
#include <map>
#include <string>

namespace trainer::config {

/// Names of keys in other trainers: their name, and "section.key" of ours.
const std::map<std::string, std::string, std::less<>>& foreign_names();

}  // namespace trainer::config
