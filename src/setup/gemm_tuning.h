#pragma once
// The table of a run's GEMM algorithms (ops/gemm_tuning.h), one for all ranks.
#include <string>

#include "comm/world.h"
#include "config/config.h"

namespace trainer::setup {

/// Makes GEMMs on a GPU use the algorithms and forms of hardware.gemm_tuning. Rank 0 reads it for all ranks. A table of
/// a device or library that differs from that of some rank is ignored by all, with a warning. Call it before memory is
/// planned; `device` may be a dry one. Returns the hash of the table in use, empty for none. Collective.
std::string use_gemm_tuning(const config::Config& config, comm::World& world, const device::Device& device);

}  // namespace trainer::setup
