#pragma once
#include "config/config.h"

namespace trainer::config {

/// Warns about keys that have no effect with the value of another key.
void warn_of_switched_off_keys(const Config& c);

}  // namespace trainer::config
