#pragma once
// The operators on a CUDA device. For an operator x, ops/x.cpp has checked the operands and counted the cost. x.cu
// takes scratch memory (whose size depends on shapes and the device's facts), returns on a dry device, and launches the
// kernels. Compute types are f32 and bf16. Without a CUDA compiler, no_cuda.cpp rejects all operators.
#include <string>

#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/fingerprint.h"
#include "ops/gemm_tuning.h"
#include "ops/grouped_gemm.h"
#include "ops/merge_attention.h"
#include "ops/muon.h"
#include "ops/norm.h"
#include "ops/reduce.h"
#include "ops/rope.h"
#include "ops/routing.h"
#include "ops/split_norm.h"
#include "ops/squared_norm.h"
#include "ops/update.h"

namespace trainer::ops::cuda {

// clang-format off
#define TRAINER_CUDA_OPERATORS(X) \
  X(Gemm) X(AttentionForward) X(AttentionBackward) X(MergeAttention) \
  X(NormForward) X(NormApply) X(NormBackward) \
  X(NormMoments) X(NormMerge) X(SplitNormSums) X(SplitNormBackward) \
  X(BiasActivation) X(ActivationBackward) X(Add) X(GatedForward) X(GatedBackward) \
  X(ops::Sigmoid) X(SigmoidBackward) X(SoftCap) \
  X(Route) X(SortRows) X(GatherRows) X(CombineRows) X(RouteBackward) X(GroupedGemm) X(GroupedWeightGradient) \
  X(Rope) X(EmbeddingForward) X(AddPositions) X(EmbeddingBackward) X(PositionsBackward) \
  X(CrossEntropy) X(ShardSums) X(ShardRescale) X(ShardLoss) \
  X(DropoutAdd) X(Scale) X(ColumnSum) X(Cast) X(Copy) X(Update) X(SquaredNorms) X(Fingerprints) \
  X(MuonMomentum) X(GatherStrips) X(ScatterStrips) X(MuonNormalize) X(MuonCombine)
// clang-format on
#define TRAINER_DECLARE_RUN(Operator) void run(Exec& ex, const Operator& op);
TRAINER_CUDA_OPERATORS(TRAINER_DECLARE_RUN)
#undef TRAINER_DECLARE_RUN

/// Returns the library that computes GEMMs, with its version: "cuBLASLt 13.1.0".
std::string library_name();
/// y[c, r] = x[r, c]: rows become columns. f32 or bf16, any pitch; x and y do not overlap.
struct Transpose {
  Tensor x, y;
};
void run(Exec& ex, const Transpose& op);
void use_gemm_tuning(const device::Device& device, const GemmTuning& tuning);
void measure_gemms(const device::Device& device, int most, int repeats, bool forms);
MeasuredGemms measured_gemms(const device::Device& device);

std::string attention_path(const device::Device& device);

}  // namespace trainer::ops::cuda
