// Operators without a CUDA kernel yet: each refuses by name.
#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

[[noreturn]] void refuse(const char* name) { throw Error(Code::device, format("{} has no CUDA kernel", name)); }

}  // namespace

std::string product_path(const device::Device&, DType) { refuse("Gemm"); }
void run(Exec&, const Gemm&) { refuse("Gemm"); }
void run(Exec&, const AttentionForward&) { refuse("AttentionForward"); }
void run(Exec&, const AttentionBackward&) { refuse("AttentionBackward"); }
void run(Exec&, const NormForward&) { refuse("NormForward"); }
void run(Exec&, const NormApply&) { refuse("NormApply"); }
void run(Exec&, const NormBackward&) { refuse("NormBackward"); }
void run(Exec&, const GeluForward&) { refuse("GeluForward"); }
void run(Exec&, const SwigluForward&) { refuse("SwigluForward"); }
void run(Exec&, const SwigluBackward&) { refuse("SwigluBackward"); }
void run(Exec&, const Rope&) { refuse("Rope"); }
void run(Exec&, const EmbeddingForward&) { refuse("EmbeddingForward"); }
void run(Exec&, const AddPositions&) { refuse("AddPositions"); }
void run(Exec&, const EmbeddingBackward&) { refuse("EmbeddingBackward"); }
void run(Exec&, const PositionsBackward&) { refuse("PositionsBackward"); }
void run(Exec&, const CrossEntropy&) { refuse("CrossEntropy"); }
void run(Exec&, const ShardSums&) { refuse("ShardSums"); }
void run(Exec&, const ShardRescale&) { refuse("ShardRescale"); }
void run(Exec&, const ShardLoss&) { refuse("ShardLoss"); }
void run(Exec&, const DropoutAdd&) { refuse("DropoutAdd"); }
void run(Exec&, const ColumnSum&) { refuse("ColumnSum"); }
void run(Exec&, const Cast&) { refuse("Cast"); }
void run(Exec&, const AdamW&) { refuse("AdamW"); }
void run(Exec&, const SquaredNorm&) { refuse("SquaredNorm"); }

}  // namespace trainer::ops::cuda
