#pragma once
// The table of GEMM algorithms that a run uses (ops/gemm_tuning.h), the same on all ranks.
#include <string>

#include "comm/world.h"
#include "config/config.h"

namespace trainer::setup {

/// Makes GEMMs on a GPU use the algorithms and forms of hardware.gemm_tuning. Rank 0 reads it for all ranks. A table
/// made for a device or library that differs from any rank's is ignored by all ranks, with a warning. Call it before
/// memory is planned; `device` may be a dry one. Returns the hash of the table in use, empty for none. Collective.
std::string use_gemm_tuning(const config::Config& config, comm::World& world, const device::Device& device);

}  // namespace trainer::setup
