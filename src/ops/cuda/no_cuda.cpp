// This file is compiled instead of the CUDA operators where there is no CUDA compiler. Then no CUDA device can be
// created, but a dry device that stands for a GPU can.
#include "device/cuda/cuda_device.h"
#include "ops/attention_default.h"
#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

[[noreturn]] void refuse() { throw Error(Code::usage, device::cuda::no_device_reason()); }

}  // namespace

std::string product_path(const device::Device&, DType) { refuse(); }
void use_gemm_tuning(const device::Device&, const GemmTuning&) { refuse(); }
void measure_gemms(const device::Device&, int, int, bool) { refuse(); }
MeasuredGemms measured_gemms(const device::Device&) { refuse(); }

void run(Exec&, const Gemm&) { refuse(); }
void use_cudnn_attention(const device::cuda::Facts&, bool wanted) {
  if (wanted) refuse();
}
std::string attention_path(const device::Device&) { refuse(); }
void run(Exec&, const AttentionForward&) { refuse(); }
void run(Exec&, const AttentionBackward&) { refuse(); }
void run(Exec&, const NormForward&) { refuse(); }
void run(Exec&, const NormApply&) { refuse(); }
void run(Exec&, const NormBackward&) { refuse(); }
void run(Exec&, const NormMoments&) { refuse(); }
void run(Exec&, const NormMerge&) { refuse(); }
void run(Exec&, const SplitNormSums&) { refuse(); }
void run(Exec&, const SplitNormBackward&) { refuse(); }
void run(Exec&, const BiasActivation&) { refuse(); }
void run(Exec&, const GeluBackward&) { refuse(); }
void run(Exec&, const Add&) { refuse(); }
void run(Exec&, const SwigluForward&) { refuse(); }
void run(Exec&, const SwigluBackward&) { refuse(); }
void run(Exec&, const Rope&) { refuse(); }
void run(Exec&, const EmbeddingForward&) { refuse(); }
void run(Exec&, const AddPositions&) { refuse(); }
void run(Exec&, const EmbeddingBackward&) { refuse(); }
void run(Exec&, const PositionsBackward&) { refuse(); }
void run(Exec&, const CrossEntropy&) { refuse(); }
void run(Exec&, const ShardSums&) { refuse(); }
void run(Exec&, const ShardRescale&) { refuse(); }
void run(Exec&, const ShardLoss&) { refuse(); }
void run(Exec&, const DropoutAdd&) { refuse(); }
void run(Exec&, const ColumnSum&) { refuse(); }
void run(Exec&, const Cast&) { refuse(); }
void run(Exec&, const Copy&) { refuse(); }
void run(Exec&, const Fill&) { refuse(); }
void run(Exec&, const AdamW&) { refuse(); }
void run(Exec&, const SquaredNorm&) { refuse(); }

}  // namespace trainer::ops::cuda

namespace trainer::ops {

std::string use_cudnn_attention_if_good(const device::cuda::Facts&) { cuda::refuse(); }

}  // namespace trainer::ops
