#pragma once
// Checks of values against each other, against the files they name and against the world.
#include <cstdint>
#include <optional>

#include "config/config.h"
#include "config/mistakes.h"

namespace trainer::config {

/// Adds a mistake for every combination that cannot run; keys already involved in a mistake are left alone. `config` is
/// resolved. World = tensor × data ranks.
void validate(const Config& config, std::optional<int64_t> world, bool files, Mistakes& mistakes);

}  // namespace trainer::config
