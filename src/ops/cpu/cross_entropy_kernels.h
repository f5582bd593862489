#pragma once
// Kernels of ops/cross_entropy.h for one instruction set; tables are indexed by the dtype of dlogits (f64, f32, bf16).
#include <cstdint>

#include "device/kernel_sets.h"

namespace trainer::ops {

/// One row. logits have dlogits' accumulator type; dlogits may be null.
struct CrossEntropyRow {
  const void* logits;
  void* dlogits;  // may begin where logits do: every element is written after all logits up to it are read
  int64_t vocab, padded, target;
  double weight, scale;
  double z, cap;   // ops::LossTerms
  double* z_loss;  // receives weight·z·lse²; may be null
  double* margin;  // receives logit[target] − largest; may be null
};
/// The largest logit of a row, and the sum of exp(logit − largest).
struct CrossEntropySums {
  double largest, sum;
};
struct CrossEntropyKernels {
  double (*row[3])(const CrossEntropyRow& op);  // returns the loss
  /// Returns the sums; requires at least one logit.
  CrossEntropySums (*sums[2])(const void* logits, int64_t vocab);
  /// Writes dlogits of a row whose sums are known; target < 0: the target is not among these columns.
  void (*gradient[3])(const CrossEntropyRow& op, const CrossEntropySums& sums);
};
TRAINER_FOR_EACH_ISA(extern const CrossEntropyKernels cross_entropy_kernels;)

}  // namespace trainer::ops
