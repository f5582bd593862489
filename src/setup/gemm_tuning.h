#pragma once
// The table of algorithms that a run's products take (ops/gemm_tuning.h), one for all ranks.
#include <string>

#include "comm/world.h"
#include "config/config.h"

namespace trainer::setup {

/// Makes products on a GPU take the algorithms and forms of hardware.gemm_tuning. The first rank reads it for all; what
/// the others find under that name does not matter. A table of another device or library than that of some rank is
/// ignored by all, with a warning. Call it before memory is planned; `device` may be a dry one. Returns the hash of the
/// table in use, empty for none. Collective.
std::string use_gemm_tuning(const config::Config& config, comm::World& world, const device::Device& device);

}  // namespace trainer::setup
