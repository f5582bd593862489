#pragma once
// Driver of GEMMs of groups on CPUs. Tasks compute tiles of the groups' results, each with panels of its own, so no
// memory depends on the groups' numbers of rows.
#include "ops/cpu/gemm_kernel.h"
#include "ops/grouped_gemm.h"

namespace trainer::ops {

/// op must have passed the checks of run(). The size of the scratch "gemm" depends only on shapes, dtypes, threads and
/// table; a dry device takes it too, but computes nothing.
void own_grouped(Exec& ex, const GroupedGemm& op, const GemmTable& table);
void own_grouped(Exec& ex, const GroupedWeightGradient& op, const GemmTable& table);

}  // namespace trainer::ops
