#ifndef TRAINER_HAS_ONEDNN
#include "ops/cpu/onednn_gemm.h"

namespace trainer::ops::onednn {

bool supports(DType) { return false; }
std::string description() { return "built without oneDNN"; }
void product(Exec&, const Gemm&) { TRAINER_CHECK(false, "built without oneDNN"); }
int64_t packed_bytes(DType, int64_t, int64_t) { return 0; }
void pack(Exec&, const PackB&) { TRAINER_CHECK(false, "built without oneDNN"); }

}  // namespace trainer::ops::onednn
#endif
