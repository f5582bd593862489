#pragma once
// Configurations as text.
#include <string>

#include "config/keys.h"

namespace trainer::config {

/// Returns the value as TOML, with numbers in the shortest form that reads back to the same bits. Empty for monostate.
std::string to_toml(const Value& value);

/// Returns the effective values as a file that load() reads back to the same bits. Keys without a value are omitted.
std::string to_toml(const Config& config);

/// Returns the effective values with a comment on each line that states their origin (default, derived, FILE:LINE or
/// --set).
std::string show(const Config& config);

/// Returns "none", "selective" or "full"; with recompute_layers = 3, "none+3" or "selective+3".
std::string recompute_text(const Train& train);

/// Returns the setting that gives a key its effect: "parallel.strategy: fsdp, autoddl" or "offload.optimizer".
std::string needs_text(const Key& key);

/// Returns all keys with default, range, unit and meaning: configs/reference.toml.
std::string reference();

}  // namespace trainer::config
