#pragma once
// The warp collectives of ops/cuda/warp.cuh, computed lane by lane.
#include <cmath>

#include "emulator.h"

namespace trainer::ops::cuda {

inline constexpr unsigned kWarpMask = 0xffffffffu;

inline int lane_id() { return emulator::lane(); }

template <typename T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(emulator::dynamic_shared());
}

inline void sync_warp() {
  int nothing = 0;
  emulator::collective(kWarpMask, "sync_warp", nothing, [](int* const*) {});
}

template <typename T>
struct Shuffled {
  T value, result;
  int bits;
};
template <typename T>
T shuffle_xor(T value, int bits) {
  Shuffled<T> mine{value, value, bits & 31};
  emulator::collective(kWarpMask, "shuffle_xor", mine, [](Shuffled<T>* const* lanes) {
    for (int i = 0; i < 32; ++i) lanes[i]->result = lanes[i ^ lanes[i]->bits]->value;
  });
  return mine.result;
}

inline float fast_exp2(float x) { return std::exp2(x); }
inline float fast_divide(float a, float b) { return a / b; }
inline uint32_t bf16_pair(float low, float high) { return bf16(low).bits | uint32_t{bf16(high).bits} << 16; }
/// The Gaussian distribution, which CUDA's library has, but not the host's.
inline float normcdff(float x) { return static_cast<float>(std::erfc(-static_cast<double>(x) / std::sqrt(2.0)) / 2); }

}  // namespace trainer::ops::cuda
