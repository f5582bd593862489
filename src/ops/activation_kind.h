#pragma once
// The activation functions, for kernels too.
#include <cstdint>

namespace trainer::ops {

/// gelu: the tanh form, 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))). gelu_erf: x·Φ(x) with the Gaussian distribution Φ,
/// from which the tanh form differs by at most 4.8e-4. silu: x/(1 + e^−x), only in gated MLPs.
enum class Activation : uint8_t { none, gelu, gelu_erf, silu };

}  // namespace trainer::ops
