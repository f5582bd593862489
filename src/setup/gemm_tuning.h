#pragma once
// The table of GEMM algorithms that a run uses (ops/gemm_tuning.h), the same on all ranks.
#include <string>

#include "comm/world.h"
#include "config/forward.h"

namespace trainer::setup {

/// Makes GEMMs on a GPU use the algorithms and forms in the table hardware.gemm_tuning, which rank 0 reads and
/// broadcasts. If the table was made for a device or library other than any rank's, all ranks ignore it, with a
/// warning. Call this before memory is planned; `device` may be a dry one. Returns the hash of the table in use, empty
/// if there is none. Collective.
std::string use_gemm_tuning(const config::Config& config, comm::World& world, const device::Device& device);

}  // namespace trainer::setup
