#pragma once
// Kernels of ops/routing.h for one instruction set. Tables are indexed by accumulator type (f64, f32) or compute type
// (f64, f32, bf16).
#include <cstdint>

#include "device/kernel_sets.h"

namespace trainer::ops {

/// Rows of Route, all packed; choices are an input if `given`.
struct RouteRows {
  const void* logits;
  int32_t* choices;
  void *weights, *lse;
  int64_t rows, experts, per_row;
  bool given, normalize;
};
/// Rows of RouteBackward, all packed, and their line of f; terms may be null.
struct RouteBackwardRows {
  const void *dweights, *logits, *lse, *weights, *f;
  const int32_t* choices;
  void *dl, *terms;
  double balance, z;
  int64_t rows, experts, per_row;
  bool normalize;
};
struct CombinedRows {
  const void* from;
  int64_t ld_from;
  const int32_t* place;
  const void* residual;  // may be null
  int64_t ld_residual;
  void* y;
  int64_t ldy, rows, cols, per_row;
};

struct RoutingKernels {
  void (*route[2])(const RouteRows& op);
  void (*backward[3])(const RouteBackwardRows& op);
  void (*combine[2][3])(const CombinedRows& op);  // y has the type of the rows, or its accumulator type
};
TRAINER_FOR_EACH_ISA(extern const RoutingKernels routing_kernels;)

}  // namespace trainer::ops
