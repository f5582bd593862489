#include "ops/cpu/peak.h"

#include "ops/cpu/simd.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kLeft = 8;
#else
constexpr int kLeft = 4;
#endif
constexpr int kRight = 3;  // kLeft·3 sums, kLeft + 1 operands at a time in registers

/// Outer products of kLeft vectors of one half with three of the other: more multiply-adds than loads, no shuffles.
template <typename T>
double peak_loop(const void* operands, int64_t rounds, void* sink) {
  constexpr int L = kLanes<T>;
  constexpr int64_t kHalf = kPeakOperandBytes / 2 / static_cast<int64_t>(sizeof(T)), kSteps = kHalf / (kLeft * L);
  const T *left = static_cast<const T*>(operands), *right = left + kHalf;
  Vec<T> acc[kLeft][kRight] = {};
  for (int64_t round = 0; round < rounds; ++round) {
    for (int64_t step = 0; step < kSteps; ++step) {
      const T* x = left + step * kLeft * L;
      const T* y = right + step * kRight * L;
      const Vec<T> y0 = load(y), y1 = load(y + L), y2 = load(y + 2 * L);
#pragma GCC unroll 8
      for (int i = 0; i < kLeft; ++i) {
        const Vec<T> xi = load(x + i * L);
        acc[i][0] = fmadd(xi, y0, acc[i][0]);
        acc[i][1] = fmadd(xi, y1, acc[i][1]);
        acc[i][2] = fmadd(xi, y2, acc[i][2]);
      }
    }
    asm volatile("" ::: "memory");
  }
  std::memcpy(sink, acc, sizeof(acc));
  return 2.0 * L * kLeft * kRight * static_cast<double>(kSteps * rounds);
}

}  // namespace

constinit const PeakTable peak_table{.f64 = peak_loop<double>, .f32 = peak_loop<float>};

}  // namespace trainer::ops::TRAINER_ISA
