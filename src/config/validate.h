#pragma once
// Checks of values against each other, against the files they name and against the world.
#include <cstdint>
#include <optional>
#include <string_view>

#include "config/config.h"
#include "config/load.h"
#include "config/mistakes.h"

namespace trainer::config {

/// Adds an error for every combination that cannot run; keys already involved in an error are skipped. `config` must be
/// resolved and loaded with these options. World = ranks of a replica × data.
void validate(const Config& config, const LoadOptions& options, Mistakes& mistakes);

/// Returns the seconds of a "delay:SECONDS" of debug.inject; empty for other texts.
std::optional<double> injected_delay(std::string_view fault);

}  // namespace trainer::config
