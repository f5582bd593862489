#pragma once
#include <functional>
#include <map>
#include <string>

namespace trainer::config {

/// What other trainers call our keys: their name, and "section.key" of ours.
const std::map<std::string, std::string, std::less<>>& foreign_names();

}  // namespace trainer::config
