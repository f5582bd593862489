// This file is compiled instead of the CUDA operators if there is no CUDA compiler. A CUDA device cannot be created
// then, but a dry device that represents a GPU can.
#include "device/cuda/cuda_device.h"
#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

[[noreturn]] void refuse() { throw Error(Code::usage, device::cuda::no_device_reason()); }

}  // namespace

#define TRAINER_REFUSE(Operator) \
  void run(Exec&, const Operator&) { refuse(); }
TRAINER_CUDA_OPERATORS(TRAINER_REFUSE)

std::string library_name() { refuse(); }
void use_gemm_tuning(const device::Device&, const GemmTuning&) { refuse(); }
void measure_gemms(const device::Device&, int, int, bool) { refuse(); }
MeasuredGemms measured_gemms(const device::Device&) { refuse(); }

std::string attention_path(const device::Device&) { refuse(); }

}  // namespace trainer::ops::cuda

namespace trainer::ops {

std::unique_ptr<device::Library> cudnn_attention(const device::cuda::Facts&, bool) { cuda::refuse(); }

}  // namespace trainer::ops
