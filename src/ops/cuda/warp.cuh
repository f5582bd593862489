#pragma once
// The parts of a kernel that are not plain C++: collectives of a warp, shared memory, vector accesses, fast functions.
// Everything else is built from these, so kernels also run when compiled as C++ with an emulated warp.
#include <cuda_runtime.h>

#include <cstdint>

#include "base/dtype.h"

#if defined(__CUDACC__)
namespace trainer::ops::cuda {

inline constexpr unsigned kWarpMask = 0xffffffffu;

/// Returns the lane of this thread. Valid in blocks whose x extent is a multiple of 32, or that are one-dimensional.
__device__ __forceinline__ int lane_id() {
  unsigned lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return static_cast<int>(lane);
}

/// Returns the dynamic shared memory of the block, at least 16-byte aligned.
template <typename T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char trainer_dynamic_shared[];
  return reinterpret_cast<T*>(trainer_dynamic_shared);
}

__device__ __forceinline__ void sync_warp() { __syncwarp(kWarpMask); }

/// Returns the value of the lane whose number differs in `bits`. All 32 lanes must call this, as all collectives here.
template <typename T>
__device__ __forceinline__ T shuffle_xor(T value, int bits) {
  return __shfl_xor_sync(kWarpMask, value, bits);
}

/// Returns 2^x with an error of about 2 ulp; 0 for −inf.
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Returns a / b with an error of about 2 ulp; 0 if |b| is above 2^126.
__device__ __forceinline__ float fast_divide(float a, float b) { return __fdividef(a, b); }

/// Rounds two values to bf16 (nearest even), `low` in the lower half.
__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

}  // namespace trainer::ops::cuda
#else
#include <emulated_warp.h>
#endif

namespace trainer::ops::cuda {

/// Return the sum and the maximum over the warp, bitwise identical in every lane. Lanes exchange values with lanes that
/// are 16, 8, 4, 2 and 1 apart.
template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
  for (int bits = 16; bits > 0; bits /= 2) value += shuffle_xor(value, bits);
  return value;
}
template <typename T>
__device__ __forceinline__ T warp_max(T value) {
  for (int bits = 16; bits > 0; bits /= 2) {
    const T other = shuffle_xor(value, bits);
    value = other > value ? other : value;
  }
  return value;
}

/// Returns the sum over a one-dimensional block of `warps` full warps. Warps are added in order, so results are bitwise
/// identical in every thread. `shared` must have room for `warps` values; it may be reused immediately.
template <typename T>
__device__ __forceinline__ T block_sum(T value, T* shared, int warps) {
  value = warp_sum(value);
  if (warps == 1) return value;
  __syncthreads();
  if (lane_id() == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  T total = shared[0];
  for (int i = 1; i < warps; ++i) total += shared[i];
  return total;
}
template <typename T>
__device__ __forceinline__ T block_max(T value, T* shared, int warps) {
  value = warp_max(value);
  if (warps == 1) return value;
  __syncthreads();
  if (lane_id() == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  T largest = shared[0];
  for (int i = 1; i < warps; ++i) largest = shared[i] > largest ? shared[i] : largest;
  return largest;
}

/// `n` values, loaded with one instruction if they fill 16 bytes.
template <typename T, int n>
struct alignas(sizeof(T) * n) Pack {
  T values[n];
};
/// `from` must be aligned to the size of the pack.
template <int n, typename T>
__device__ __forceinline__ Pack<T, n> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, n>*>(from);
}

}  // namespace trainer::ops::cuda
