#pragma once
#include "comm/world.h"

namespace trainer::comm {

/// From now on messages about ranks name their pipeline stages, which are blocks of consecutive ranks: "rank 5 (stage
/// 2)". `world`: that of threads or processes, not one of GPUs on top of it.
void name_stages(World& world, int64_t stages);

}  // namespace trainer::comm
