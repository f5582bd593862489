#pragma once
// The matrix instructions and asynchronous copies of ops/cuda/mma.cuh, element by element, with the fragment layouts of
// the PTX manual.
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "emulator.h"

namespace trainer::ops::cuda {
namespace emulated_mma {

struct MatrixLoad {
  const bf16* row;
  uint32_t* result;
};
template <bool kTransposed>
void load_matrices(uint32_t (&r)[4], const bf16* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) emulator::fail("ldmatrix: row at %p", static_cast<const void*>(row));
  MatrixLoad mine{row, r};
  emulator::collective(0xffffffffu, kTransposed ? "ldmatrix.trans" : "ldmatrix", mine, [](MatrixLoad* const* lanes) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        uint32_t bits = 0;
        for (int e = 0; e < 2; ++e) {
          const int row_in_fragment = lane / 4, column = lane % 4 * 2 + e;
          const bf16 element =
              kTransposed ? lanes[8 * i + column]->row[row_in_fragment] : lanes[8 * i + row_in_fragment]->row[column];
          bits |= static_cast<uint32_t>(element.bits) << (16 * e);
        }
        lanes[lane]->result[i] = bits;
      }
    }
  });
}

/// Returns element e of a register with two bf16 values.
inline float element(uint32_t bits, int e) {
  return static_cast<float>(std::bit_cast<bf16>(static_cast<uint16_t>(bits >> (16 * e))));
}

struct Product {
  float* c;
  uint32_t a[4], b[2];
};

struct PendingCopy {
  void* to;
  const void* from;
  size_t bytes;
  bool valid;
};
inline std::vector<PendingCopy>& pending() {
  static thread_local std::vector<PendingCopy> of_thread[1024];
  return of_thread[threadIdx.x];
}
/// Starts a copy, whose data arrive when a thread waits for it; until then the destination holds NaNs.
inline void copy(void* shared, const void* global, size_t bytes, bool valid) {
  if (reinterpret_cast<uintptr_t>(shared) % bytes != 0 || reinterpret_cast<uintptr_t>(global) % bytes != 0)
    emulator::fail("cp.async of %zu bytes from %p to %p", bytes, global, shared);
  std::memset(shared, 0xff, bytes);
  pending().push_back({shared, global, bytes, valid});
}

}  // namespace emulated_mma

inline void load_matrices(uint32_t (&r)[4], const bf16* row) { emulated_mma::load_matrices<false>(r, row); }
inline void load_matrices_transposed(uint32_t (&r)[4], const bf16* row) { emulated_mma::load_matrices<true>(r, row); }

inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated_mma::Product mine{c, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  emulator::collective(0xffffffffu, "mma.m16n8k16", mine, [](emulated_mma::Product* const* lanes) {
    // a_i: row g for i in 0, 1, 4, 5, else g + 8; column 2t + i % 2, plus 8 if i >= 4. b_i: row 2t + i % 2, plus 8 if
    // i >= 2; column g. c_i: row g, plus 8 if i >= 2; column 2t + i % 2.
    float left[16][16], right[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 8; ++i) {
        const int row = i % 4 < 2 ? g : g + 8, column = 2 * t + i % 2 + (i < 4 ? 0 : 8);
        left[row][column] = emulated_mma::element(lanes[lane]->a[i / 2], i % 2);
      }
      for (int i = 0; i < 4; ++i)
        right[2 * t + i % 2 + (i < 2 ? 0 : 8)][g] = emulated_mma::element(lanes[lane]->b[i / 2], i % 2);
    }
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 4; ++i) {
        const int row = i < 2 ? g : g + 8, column = 2 * t + i % 2;
        float sum = lanes[lane]->c[i];
        for (int k = 0; k < 16; ++k) sum += left[row][k] * right[k][column];
        lanes[lane]->c[i] = sum;
      }
    }
  });
}

inline void copy_16_async(void* shared, const void* global, bool valid) {
  emulated_mma::copy(shared, global, 16, valid);
}
inline void copy_4_async(void* shared, const void* global, bool valid) { emulated_mma::copy(shared, global, 4, valid); }
inline void copies_wait() {
  for (const emulated_mma::PendingCopy& copy : emulated_mma::pending()) {
    if (copy.valid) {
      std::memcpy(copy.to, copy.from, copy.bytes);
    } else {
      std::memset(copy.to, 0, copy.bytes);
    }
  }
  emulated_mma::pending().clear();
}

}  // namespace trainer::ops::cuda
