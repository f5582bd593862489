#pragma once
// Products by oneDNN, a second opinion on our own. Called per tile of C from our pool, with one thread each; the tiles
// are fixed by shape. Builds without oneDNN get no_onednn_gemm.cpp, where nothing is supported.
#include <string>

#include "ops/gemm.h"

namespace trainer::ops::onednn {

/// True where oneDNN can compute products of this dtype at all here (tests run fp32 through it on CPUs without AMX).
bool supports(DType compute);
/// "oneDNN 2.6.3 amx-bf16"
std::string description();

/// op must have passed run's checks; m, n, k > 0; supported dtypes. Scratch "gemm" is the same on a dry device.
void product(Exec& ex, const Gemm& op);
int64_t packed_bytes(DType compute, int64_t k, int64_t n);
void pack(Exec& ex, const PackB& op);

}  // namespace trainer::ops::onednn
