#include "ops/cpu/squared_norm_kernels.h"

#include "ops/cpu/simd.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

/// Returns the elements from x on, as many as there are lanes, in f64.
template <typename T>
[[gnu::always_inline]] inline Vec<double> widened(const T* x) {
  typedef T Slice __attribute__((vector_size(kLanes<double> * sizeof(T))));
  Slice slice;
  std::memcpy(&slice, x, sizeof(slice));
  return __builtin_convertvector(slice, Vec<double>);
}
[[gnu::always_inline]] inline Vec<double> widened(const bf16* x) {
  typedef uint16_t Slice __attribute__((vector_size(kLanes<double> * sizeof(bf16))));
  typedef uint32_t Wide __attribute__((vector_size(kLanes<double> * sizeof(float))));
  typedef float Floats __attribute__((vector_size(kLanes<double> * sizeof(float))));
  Slice slice;
  std::memcpy(&slice, x, sizeof(slice));
  return __builtin_convertvector((Floats)(__builtin_convertvector(slice, Wide) << 16), Vec<double>);
}

/// Computes sixteen partial sums, of the elements whose index is 0, 1, … 15 modulo 16, and adds them in a tree: the
/// same additions on every instruction set. Squares of f32 and bf16 are exact in f64.
template <typename T>
double square_sum(const void* data, int64_t n) {
  constexpr int kSums = 16, kVectors = kSums / kLanes<double>;
  const T* x = static_cast<const T*>(data);
  Vec<double> sums[kVectors] = {};
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      const Vec<double> wide = widened(x + i + j * kLanes<double>);
      sums[j] += wide * wide;
    }
  }
  double lanes[kSums];
  std::memcpy(lanes, sums, sizeof(lanes));
  for (int j = 0; i < n; ++i, ++j) lanes[j] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (int width = kSums / 2; width > 0; width /= 2)
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  return lanes[0];
}

}  // namespace

extern const SquaredNormKernels squared_norm_kernels = {{square_sum<double>, square_sum<float>, square_sum<bf16>}};

}  // namespace trainer::ops::TRAINER_ISA
