#pragma once
// Panels of GEMMs: block sizes and packing (see gemm_kernel.h). Compiled per instruction set.
#include <type_traits>

#include "ops/cpu/math.h"
#include "ops/cpu/simd.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

// Register block: kRows × two vectors of sums, two vectors of B and one element of A fill the vector registers.
#if defined(__AVX512F__)
constexpr int kRows = 14;
constexpr int64_t kBlockK = 384, kBlockRows = 252, kBlockCols = 1024;  // for 48 KiB of L1 and 1 to 2 MiB of L2
constexpr bool kByBlock = true;                                        // for long k, not all blocks of A would fit
#else
#if defined(__aarch64__)
constexpr int kRows = 12;                                             // 32 vector registers
#else
constexpr int kRows = 6;
#endif
constexpr int64_t kBlockK = 256, kBlockRows = 192, kBlockCols = 512;  // for 32 KiB of L1 and 512 KiB of L2
constexpr bool kByBlock = false;                                      // no gain was measured
#endif
constexpr int64_t kGradientTerms = 512;  // the panels of both operands stay in caches until they are multiplied
template <typename P>
constexpr int64_t kShare = static_cast<int64_t>(sizeof(P) / sizeof(float));  // the sizes above are for f32
template <typename P>
constexpr int kCols = 2 * kLanes<P>;

constexpr int64_t at_most(int64_t value, int64_t bound) { return value < bound ? value : bound; }
constexpr int64_t clamp_lanes(int64_t n, int64_t lanes) { return n < 0 ? 0 : n < lanes ? n : lanes; }

/// Returns half of a vector without going through memory.
template <bool Upper, typename V>
[[gnu::always_inline]] inline auto half(V v) {
  constexpr int L = sizeof(V) / sizeof(v[0]), U = Upper ? L / 2 : 0;
  if constexpr (L == 16) {
    return __builtin_shufflevector(v, v, U, U + 1, U + 2, U + 3, U + 4, U + 5, U + 6, U + 7);
  } else if constexpr (L == 8) {
    return __builtin_shufflevector(v, v, U, U + 1, U + 2, U + 3);
  } else {
    static_assert(L == 4);
    return __builtin_shufflevector(v, v, U, U + 1);
  }
}

/// Stores the first N lanes, N even; P may be smaller than a lane. (Storing whole vectors, whose ends the next ones
/// overwrite, is three times as slow on Zen 3.)
template <int N, typename P, typename V>
[[gnu::always_inline]] inline void store_first(P* p, V v) {
  constexpr int L = sizeof(V) / sizeof(v[0]);
  if constexpr (N == L) {
    std::memcpy(p, &v, sizeof(v));
  } else if constexpr (N > L / 2) {
    store_first<L / 2>(p, half<false>(v));
    store_first<N - L / 2>(p + L / 2 * sizeof(v[0]) / sizeof(P), half<true>(v));
  } else {
    store_first<N>(p, half<false>(v));
  }
}

/// Stores the lanes of group `Group` of the R elements at one k.
template <int R, int Group, typename D, typename P>
[[gnu::always_inline]] inline void store_group(D* term, Vec<P> v) {
  constexpr int L = kLanes<P>, kLeft = R - Group * L;
  if constexpr (kLeft >= L) {
    store(term + Group * L, v);
  } else if constexpr (kLeft > 0) {
    store_first<kLeft>(term + Group * L, v);
  }
}

/// Calls fn with 0, 1, … Count − 1 as types.
template <int Count, int I = 0, typename F>
[[gnu::always_inline]] inline void unrolled(F fn) {
  if constexpr (I < Count) {
    fn(std::integral_constant<int, I>());
    unrolled<Count, I + 1>(fn);
  }
}

/// Returns the lanes of group `Group` of the R elements of a panel, beginning at row[at]; reads nothing outside row[0,
/// extent).
template <int R, int Group, typename T>
[[gnu::always_inline]] inline auto load_within(const T* row, int64_t at, int64_t extent) {
  using P = AccumulatorOf<T>;
  constexpr int L = kLanes<P>, kLeft = R - Group * L < L ? R - Group * L : L;
  if (at + kLeft > extent || at + kLeft < L) return load_n(row + at, clamp_lanes(extent - at, L));
  constexpr auto down = [](int i) { return i < kLeft ? i + L - kLeft : 0; };
  const Vec<P> last = load(row + at + kLeft - L);  // ends where the panel ends
  return shuffled<down>(last, last);
}

/// Packs panels whose elements at the same k are contiguous in src, and `ld` apart along k. Each such row of src is
/// read once, for all panels, and prefetched kAhead rows in advance, since rows are too short for the hardware
/// prefetcher.
template <int R, typename T, typename D>
void pack_rows_adjacent(const T* src, int64_t ld, int64_t extent, int64_t k, D* dst, int64_t stride) {
  using P = AccumulatorOf<T>;
  constexpr int L = kLanes<P>, kGroups = (R + L - 1) / L;
  constexpr int64_t kAhead = 8, kPerLine = 64 / static_cast<int64_t>(sizeof(T));
  const int64_t panels = (extent + R - 1) / R, whole = extent < kGroups * L ? 0 : (extent - kGroups * L) / R + 1;
  for (int64_t term = 0; term < k; ++term) {
    const T* const row = src + term * ld;
    for (int64_t i = 0; i < extent; i += kPerLine) __builtin_prefetch(row + kAhead * ld + i);
    for (int64_t p = 0; p < whole; ++p)
      unrolled<kGroups>([&](auto g) __attribute__((always_inline)) {
        store_group<R, g, D, P>(dst + p * stride + term * R, load(row + p * R + g * L));
      });
    for (int64_t p = whole; p < panels; ++p)
      unrolled<kGroups>([&](auto g) __attribute__((always_inline)) {
        store_group<R, g, D, P>(dst + p * stride + term * R, load_within<R, g>(row, p * R + g * L, extent));
      });
  }
}

/// Packs a panel whose rows are `ld` apart and contiguous along k, and prefetches the rows of the next panel.
template <int R, typename T, typename D>
void pack_terms_adjacent(const T* src, int64_t ld, int64_t extent, int64_t k, D* dst) {
  using P = AccumulatorOf<T>;
  constexpr int L = kLanes<P>, kGroups = (R + L - 1) / L, kPerLine = 64 / static_cast<int>(sizeof(T));
  for (int64_t term = 0; term < k; term += L) {
    const int64_t terms = at_most(k - term, L);
    if (R <= 16 && term % kPerLine == 0)  // larger panels would not fit in L1 together
      for (int64_t row = R; row < at_most(extent, 2 * R); ++row) __builtin_prefetch(src + row * ld + term);
    unrolled<kGroups>([&](auto g) __attribute__((always_inline)) {
      Vec<P> v[L];
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) {
        const int64_t row = g * L + i;
        if (row >= extent || row >= R) {
          v[i] = Vec<P>{};
        } else {
          v[i] = terms == L ? load(src + row * ld + term) : load_n(src + row * ld + term, terms);
        }
      }
      transpose<P>(v);
      if (terms == L) {
#pragma GCC unroll 16
        for (int i = 0; i < L; ++i) store_group<R, g, D, P>(dst + (term + i) * R, v[i]);
      } else {
        for (int64_t i = 0; i < terms; ++i) store_group<R, g, D, P>(dst + (term + i) * R, v[i]);
      }
    });
  }
}

template <int R, typename T, typename D>
void pack(const T* src, int64_t ld, bool along_k, int64_t extent, int64_t k, D* dst, int64_t stride) {
  if (!along_k) {
    // Only a few panels at a time: their strides are multiples of large powers of two, so lines of many panels would
    // compete for the same few sets of L1.
    constexpr int64_t kTogether = 8;
    for (int64_t row = 0; row < extent; row += kTogether * R, dst += kTogether * stride)
      pack_rows_adjacent<R>(src + row, ld, at_most(extent - row, kTogether * R), k, dst, stride);
    return;
  }
  for (int64_t row = 0; row < extent; row += R, dst += stride)
    pack_terms_adjacent<R>(src + row * ld, ld, extent - row, k, dst);
}

template <int R, typename T>
void pack_a(const T* src, int64_t ld, bool along_k, int64_t extent, int64_t k, AccumulatorOf<T>* dst) {
  pack<R>(src, ld, along_k, extent, k, dst, k * R);
}

template <typename T, typename D>
void pack_b(const T* src, int64_t ld, bool along_k, int64_t extent, int64_t k, D* dst, int64_t stride) {
  pack<kCols<AccumulatorOf<T>>>(src, ld, along_k, extent, k, dst, stride);
}

}  // namespace
}  // namespace trainer::ops::TRAINER_ISA
