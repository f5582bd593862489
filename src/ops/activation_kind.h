#pragma once
// The activation functions, for kernels too.
#include <cstdint>

namespace trainer::ops {

/// gelu: the tanh form, 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))). silu: x/(1 + e^−x), only in gated MLPs.
enum class Activation : uint8_t { none, gelu, silu };

}  // namespace trainer::ops
