#include "ops/merge_attention.h"

#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {

void run(Exec&, const MergeAttention&) { TRAINER_CHECK(false, "merging attention has no kernel for GPUs yet"); }

}  // namespace trainer::ops::cuda
