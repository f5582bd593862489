#pragma once
// Checks values against each other, against the files that they name and against the number of ranks.
#include <optional>
#include <string_view>

#include "config/config.h"
#include "config/load.h"
#include "config/mistakes.h"

namespace trainer::config {

/// Adds an error for every combination of values that cannot run; combinations with a key that already has an error are
/// skipped. `config` must be resolved and loaded with these options. World = ranks of a replica × data.
void validate(const Config& config, const LoadOptions& options, Mistakes& mistakes);

/// Throws Code::config if the warm-up and the decay of the learning rate do not fit into a run of `steps` steps.
/// validate() checks this for runs whose number of steps only the configuration determines.
void require_schedule(const Config& config, int64_t steps);

/// Returns the seconds of a "delay:SECONDS" in debug.inject; an empty result for other text.
std::optional<double> injected_delay(std::string_view fault);

}  // namespace trainer::config
