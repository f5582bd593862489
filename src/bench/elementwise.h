#pragma once
// Rates of memory-bound operators, compared with a copy of the same number of bytes.
#include <string>
#include <vector>

#include "tensor/exec.h"

namespace trainer::bench {

struct ElementwiseRate {
  std::string name;
  double seconds = 0;   // median
  double gb_per_s = 0;  // counts the bytes that the operator must move: every operand once
  double share = 0;     // relative to the rate of a copy
};
struct ElementwiseRates {
  double copy_gb_per_s = 0;  // counts bytes read and bytes written
  std::vector<ElementwiseRate> operators;
};

/// Measures norms, activations, dropout, the bias gradient, RoPE, casts, the loss and the gathering and combining of
/// experts' rows in the compute type, on operands of `bytes` each. Returns medians over `repeats`.
ElementwiseRates bench_elementwise(Exec& ex, DType compute, int64_t bytes, int repeats);

}  // namespace trainer::bench
