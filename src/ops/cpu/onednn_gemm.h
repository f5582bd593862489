#pragma once
// Products by oneDNN: bf16 where the CPU has AMX tiles. Called per tile of C from our pool, with one thread each; the
// tiles are fixed by shape. Without oneDNN in the build `serves` is always false.
#include <string>

#include "ops/gemm.h"

namespace trainer::ops::onednn {

/// True where products of this dtype go to oneDNN: bf16 on AMX, and on top of that the dtypes named in the environment
/// variable TRAINER_ONEDNN_DTYPES ("fp32,bf16"; for tests, and for measuring against our own kernels).
bool serves(const device::Device& device, DType compute);
std::string description(DType compute);

/// op must have passed run's checks; k > 0. Scratch "gemm" is the same on a dry device.
void product(Exec& ex, const Gemm& op);
int64_t packed_bytes(DType compute, int64_t k, int64_t n);
void pack(Exec& ex, const PackB& op);

}  // namespace trainer::ops::onednn
