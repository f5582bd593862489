#pragma once
// Matrix instructions of a warp and asynchronous copies into shared memory (PTX ISA, sm_80 and up). Fragments of
// mma.m16n8k16, with lane = 4·g + t:
//   left  (m × k): r[0] row g, columns 2t, 2t+1;  r[1] row g+8;  r[2], r[3] the same rows, columns 8 further
//   right (k × n): r[0] rows 2t, 2t+1 of column g;  r[1] rows 8 further
//   sums  (m × n): c[0], c[1] row g, columns 2t, 2t+1;  c[2], c[3] row g+8
// Functions that load or multiply are collective over a warp.
#include <cuda_runtime.h>

#include <cstdint>

#include "base/dtype.h"

#if defined(__CUDACC__)

namespace trainer::ops::cuda {

/// Loads four 8×8 matrices of 16-bit elements. Lane 8·i + r passes the address of row r (16 bytes) of matrix i. r[i]
/// receives row lane/4, columns 2·(lane % 4) and the next.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const bf16* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
/// Loads the same, each matrix transposed.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const bf16* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// c += a·b in f32, b = {b0, b1}.
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
      "%2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// shared <- 16 (4) bytes of global memory, or zeros if not valid; complete after copies_wait(). Both addresses must be
/// aligned to 16 (4) bytes; `global` must be readable even if not valid.
__device__ __forceinline__ void copy_16_async(void* shared, const void* global, bool valid) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address), "l"(global), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_4_async(void* shared, const void* global, bool valid) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(address), "l"(global), "r"(bytes) : "memory");
}
/// Waits for this thread's copies. Those of other threads are visible after the next barrier.
__device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

}  // namespace trainer::ops::cuda

#else
#include <emulated_mma.h>
#endif
