// Operators without a CUDA kernel yet: each refuses by name.
#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

[[noreturn]] void refuse(const char* name) { throw Error(Code::device, format("{} has no CUDA kernel", name)); }

}  // namespace

std::string product_path(const device::Device&, DType) { refuse("Gemm"); }
void run(Exec&, const Gemm&) { refuse("Gemm"); }

}  // namespace trainer::ops::cuda
