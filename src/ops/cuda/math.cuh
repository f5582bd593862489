#pragma once
// Activation functions in f32, for kernels whose results are stored as T. If T is f32, their error is a few ulp. If T
// is bf16, whose rounding error is 2^15 times larger, they use fast approximate instructions.
#include <type_traits>

#include "base/dtype.h"
#include "ops/activation_kind.h"
#include "ops/cuda/warp.cuh"

namespace trainer::ops::cuda {

template <typename T>
__device__ inline float exp_for(float x) {
  if constexpr (std::is_same_v<T, bf16>) return fast_exp2(x * 1.44269504f);
  return expf(x);
}
template <typename T>
__device__ inline float quotient_for(float a, float b) {
  if constexpr (std::is_same_v<T, bf16>) return fast_divide(a, b);
  return a / b;
}

template <typename T>
__device__ inline float silu(float x) {
  return quotient_for<T>(x, 1.0f + exp_for<T>(-x));
}

/// A function's value and its derivative.
struct WithSlope {
  float value, slope;
};
/// sigmoid(y) and its derivative s·(1 − s), computed from exp(−|y|) for full relative accuracy.
template <typename T>
__device__ inline WithSlope sigmoid_with_slope(float y) {
  const float e = exp_for<T>(-fabsf(y)), inverse = quotient_for<T>(1.0f, 1.0f + e), small = e * inverse;
  return {y < 0 ? small : inverse, small * inverse};
}

// gelu(x) = x/2·(1 + tanh u) = x·sigmoid(2u), u = √(2/π)·(x + 0.044715·x³).
inline constexpr float kGeluLinear = static_cast<float>(2 * 0.79788456080286535588);  // 2·√(2/π)
inline constexpr float kGeluCubic = static_cast<float>(2 * 0.79788456080286535588 * 0.044715);

template <typename T>
__device__ inline float gelu(float x) {
  return quotient_for<T>(x, 1.0f + exp_for<T>(x * fmaf(x * x, -kGeluCubic, -kGeluLinear)));
}
template <typename T>
__device__ inline WithSlope gelu_with_slope(float x) {
  // d/dx x·s(2u) = s + x·s'·2u'. Beyond 16, s' is 0. The bound keeps x² finite, and comparisons keep a NaN.
  const float near = x > 16.0f ? 16.0f : x < -16.0f ? -16.0f : x, square = near * near;
  const WithSlope s = sigmoid_with_slope<T>(near * fmaf(square, kGeluCubic, kGeluLinear));
  return {x * s.value, fmaf(near * s.slope, fmaf(square, 3 * kGeluCubic, kGeluLinear), s.value)};
}

/// The Gaussian distribution Φ; of bf16 results by the polynomial of CPUs (math_bf16.h). e: e^(−x²/2).
template <typename T>
__device__ inline float normal_distribution(float x, float e) {
  if constexpr (!std::is_same_v<T, bf16>) {
    return normcdff(x);
  } else {
    const float y = fabsf(x), a = fmaf(1.25f, y, 1.0f), b = y + 3.5f, r = fast_divide(1.0f, a * b),
                u = (y - 3.5f) * a * r;
    float fit = -0x1.729994p-10f;
    fit = fmaf(fit, u, 0x1.ed431p-11f);
    fit = fmaf(fit, u, 0x1.ae99aep-7f);
    fit = fmaf(fit, u, -0x1.5dcb4cp-5f);
    fit = fmaf(fit, u, 0x1.0216e4p-4f);
    fit = fmaf(fit, u, -0x1.f32a58p-6f);
    fit = fmaf(fit, u, -0x1.34aa96p-4f);
    fit = fmaf(fit, u, 0x1.24a968p-1f);
    const float tail = e * fit * (b * r);
    return x < 0 ? tail : 1.0f - tail;
  }
}
/// gelu_erf: x·Φ(x) and its derivative Φ(x) + x·e^(−x²/2)/√(2π). Beyond 13.5, Φ is 0 or 1; comparisons keep a NaN.
template <typename T>
__device__ inline WithSlope gelu_erf_with_slope(float x) {
  const float low = x < -13.5f ? -13.5f : x, near = low > 13.5f ? 13.5f : low, e = exp_for<T>(-0.5f * near * near);
  const float distribution = normal_distribution<T>(near, e);
  return {low * distribution, fmaf(near * 0.398942280f, e, distribution)};
}

/// Return act(x) and act'(x), except of none and silu.
template <typename T>
__device__ inline float activated(Activation act, float x) {
  return act == Activation::gelu_erf ? gelu_erf_with_slope<T>(x).value : gelu<T>(x);
}
template <typename T>
__device__ inline float slope_of(Activation act, float x) {
  return act == Activation::gelu_erf ? gelu_erf_with_slope<T>(x).slope : gelu_with_slope<T>(x).slope;
}

}  // namespace trainer::ops::cuda
