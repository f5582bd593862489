#pragma once
// The operators on a CUDA device. ops/x.cpp has checked the operands and counted the cost. x.cu takes its scratch (a
// function of shapes and of the device's facts), returns on a dry device, and launches. Compute types are f32 and bf16.
// Without a CUDA compiler no_cuda.cpp refuses each of them.
#include <span>
#include <string>

#include "ops/activation.h"
#include "ops/adamw.h"
#include "ops/attention.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/gemm_tuning.h"
#include "ops/norm.h"
#include "ops/reduce.h"
#include "ops/rope.h"
#include "ops/split_norm.h"

namespace trainer::ops::cuda {

void run(Exec& ex, const Gemm& op);
/// What computes products of this dtype, with its version: "cuBLASLt 13.1.0".
std::string product_path(const device::Device& device, DType compute);
/// y[c, r] = x[r, c]: rows become columns. f32 or bf16, any pitch; x and y do not overlap.
struct Transpose {
  Tensor x, y;
};
void run(Exec& ex, const Transpose& op);
void use_gemm_tuning(const device::Device& device, const GemmTuning& tuning);
void measure_gemms(const device::Device& device, int most, int repeats, bool forms);
MeasuredGemms measured_gemms(const device::Device& device);

void use_cudnn_attention(const device::cuda::Facts& gpu, bool wanted);
std::string attention_path(const device::Device& device);
void run(Exec& ex, const AttentionForward& op);
void run(Exec& ex, const AttentionBackward& op);

void run(Exec& ex, const NormForward& op);
void run(Exec& ex, const NormApply& op);
void run(Exec& ex, const NormBackward& op);

void run(Exec& ex, const NormMoments& op);
void run(Exec& ex, const NormMerge& op);
void run(Exec& ex, const SplitNormSums& op);
void run(Exec& ex, const SplitNormBackward& op);

void run(Exec& ex, const BiasActivation& op);
void run(Exec& ex, const GeluBackward& op);
void run(Exec& ex, const Add& op);

void run(Exec& ex, const SwigluForward& op);
void run(Exec& ex, const SwigluBackward& op);

void run(Exec& ex, const Rope& op);

void run(Exec& ex, const EmbeddingForward& op);
void run(Exec& ex, const AddPositions& op);
void run(Exec& ex, const EmbeddingBackward& op);
void run(Exec& ex, const PositionsBackward& op);

void run(Exec& ex, const CrossEntropy& op);
void run(Exec& ex, const ShardSums& op);
void run(Exec& ex, const ShardRescale& op);
void run(Exec& ex, const ShardLoss& op);

void run(Exec& ex, const DropoutAdd& op);
void run(Exec& ex, const ColumnSum& op);
void run(Exec& ex, const Cast& op);
void run(Exec& ex, const Copy& op);
void run(Exec& ex, const Fill& op);

void run(Exec& ex, const AdamW& op);
void run(Exec& ex, const SquaredNorm& op);

}  // namespace trainer::ops::cuda
