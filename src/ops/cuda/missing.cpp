// Operators without a CUDA kernel yet: each refuses by name.
#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

[[noreturn]] void refuse(const char* name) { throw Error(Code::device, format("{} has no CUDA kernel", name)); }

}  // namespace

void run(Exec&, const AttentionForward&) { refuse("AttentionForward"); }
void run(Exec&, const AttentionBackward&) { refuse("AttentionBackward"); }

}  // namespace trainer::ops::cuda
