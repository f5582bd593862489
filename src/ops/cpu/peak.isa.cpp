#include "ops/cpu/peak.h"

#include "ops/cpu/lanes.h"
#include "ops/cpu/pairs.h"
#include "ops/cpu/tiles.h"

// Constraint for an operand of inline assembly in a vector register.
#if defined(__aarch64__)
#define TRAINER_VECTOR_OPERAND(x) "+w"(x)
#else
#define TRAINER_VECTOR_OPERAND(x) "+v"(x)
#endif

namespace trainer::ops::TRAINER_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kLeft = 8;
#else
constexpr int kLeft = 4;
#endif
constexpr int kRight = 3;  // kLeft·3 sums, kLeft + 1 operands at a time in registers

/// Computes outer products of kLeft vectors of one half with three of the other: more multiply-adds than loads, no
/// shuffles.
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
        Vec<T> xi = load(x + i * L);
        // Keeps xi in a register: as a memory operand of all three, it would cost more than the multiplications.
        asm("" : TRAINER_VECTOR_OPERAND(xi));
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

/// The same with dot products of bf16 pairs, which read as many bytes of operands per instruction.
double pair_peak_loop(const void* operands, int64_t rounds, void* sink) {
  constexpr int L = 2 * kPairLanes;
  constexpr int64_t kHalf = kPeakOperandBytes / 2 / static_cast<int64_t>(sizeof(bf16)), kSteps = kHalf / (kLeft * L);
  const bf16 *left = static_cast<const bf16*>(operands), *right = left + kHalf;
  Vec<float> acc[kLeft][kRight];  // never accessed as a whole array, since GCC would then keep it in memory
#pragma GCC unroll 8
  for (int i = 0; i < kLeft; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kRight; ++j) acc[i][j] = Vec<float>{};
  for (int64_t round = 0; round < rounds; ++round) {
    for (int64_t step = 0; step < kSteps; ++step) {
      const bf16* x = left + step * kLeft * L;
      const bf16* y = right + step * kRight * L;
      const Pairs y0 = load_pairs(y), y1 = load_pairs(y + L), y2 = load_pairs(y + 2 * L);
#pragma GCC unroll 8
      for (int i = 0; i < kLeft; ++i) {
        const Pairs xi = load_pairs(x + i * L);
        add_dots(acc[i][0], xi, y0);
        add_dots(acc[i][1], xi, y1);
        add_dots(acc[i][2], xi, y2);
      }
    }
    asm volatile("" ::: "memory");
  }
#pragma GCC unroll 8
  for (int i = 0; i < kLeft; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kRight; ++j) store(static_cast<float*>(sink) + (i * kRight + j) * kPairLanes, acc[i][j]);
  return 2.0 * L * kLeft * kRight * static_cast<double>(kSteps * rounds);
}

/// Multiplies blocks of two by two tiles, with all operands in L1.
double tile_peak_loop(const void* operands, int64_t rounds, void* sink) {
  constexpr int64_t kTileBytes = 1024, kHalf = kPeakOperandBytes / 2, kSteps = kHalf / (2 * kTileBytes);
  configure_tiles();
  const char *left = static_cast<const char*>(operands), *right = left + kHalf;
  for (int64_t round = 0; round < rounds; ++round) {
    for (int64_t step = 0; step < kSteps; ++step) {
      load_tile<4>(left + 2 * step * kTileBytes);
      load_tile<5>(left + (2 * step + 1) * kTileBytes);
      load_tile<6>(right + 2 * step * kTileBytes);
      load_tile<7>(right + (2 * step + 1) * kTileBytes);
      multiply_tiles<0, 4, 6>();
      multiply_tiles<1, 4, 7>();
      multiply_tiles<2, 5, 6>();
      multiply_tiles<3, 5, 7>();
    }
  }
  char* const out = static_cast<char*>(sink);
  store_tile<0>(out, 64);
  store_tile<1>(out + kTileBytes, 64);
  store_tile<2>(out + 2 * kTileBytes, 64);
  store_tile<3>(out + 3 * kTileBytes, 64);
  return 4.0 * 2 * kTileRows * kTileRows * kTileTerms * static_cast<double>(kSteps * rounds);
}

// All loads come before the stores: the arrays may begin at the same offset in a page, and a load that follows a store
// to the same offset in a different page waits for that store (4 KiB aliasing).
void traffic_loop(float* p, float* m, float* v, const float* g, int64_t n) {
  each_vector<float>(n, [=](int64_t i, auto tag) {
    const Vec<float> x = get(g + i, tag), a = get(p + i, tag), b = get(m + i, tag), c = get(v + i, tag);
    put(p + i, a + x, tag);
    put(m + i, b + x, tag);
    put(v + i, c + x, tag);
  });
}

float read_loop(const float* p, const float* m, const float* v, const float* g, int64_t n) {
  Vec<float> sums[4] = {};
  each_vector<float>(n, [&](int64_t i, auto tag) {
    sums[0] += get(p + i, tag);
    sums[1] += get(m + i, tag);
    sums[2] += get(v + i, tag);
    sums[3] += get(g + i, tag);
  });
  return lane_sum<float>((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace

constinit const PeakTable peak_table{.f64 = peak_loop<double>,
                                     .f32 = peak_loop<float>,
                                     .bf16_pairs = pair_peak_loop,
                                     .bf16_tiles = tile_peak_loop,
                                     .traffic = traffic_loop,
                                     .read = read_loop};

}  // namespace trainer::ops::TRAINER_ISA
