#pragma once
// The warp collectives of ops/cuda/warp.cuh, computed lane by lane.
#include <cmath>
#include <cstring>

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
  int source;
};
/// Returns the value of lane `source`.
template <typename T>
T shuffle(T value, int source) {
  Shuffled<T> mine{value, value, source & 31};
  emulator::collective(kWarpMask, "shuffle", mine, [](Shuffled<T>* const* lanes) {
    for (int i = 0; i < 32; ++i) lanes[i]->result = lanes[lanes[i]->source]->value;
  });
  return mine.result;
}
template <typename T>
T shuffle_xor(T value, int bits) {
  return shuffle(value, emulator::lane() ^ bits);
}
/// Returns the value of the lane `delta` below; lanes without such a lane return their own value.
template <typename T>
T shuffle_up(T value, int delta) {
  const int lane = emulator::lane();
  return shuffle(value, lane >= delta ? lane - delta : lane);
}
/// Returns a mask whose bit i is lane i's predicate.
inline unsigned ballot(bool predicate) {
  struct Vote {
    bool predicate;
    unsigned result;
  } mine{predicate, 0};
  emulator::collective(kWarpMask, "ballot", mine, [](Vote* const* lanes) {
    unsigned bits = 0;
    for (int i = 0; i < 32; ++i) bits |= lanes[i]->predicate ? 1u << i : 0u;
    for (int i = 0; i < 32; ++i) lanes[i]->result = bits;
  });
  return mine.result;
}

inline float fast_exp2(float x) { return std::exp2(x); }
inline float fast_divide(float a, float b) { return a / b; }
inline uint32_t bf16_pair(float low, float high) { return bf16(low).bits | uint32_t{bf16(high).bits} << 16; }

}  // namespace trainer::ops::cuda
