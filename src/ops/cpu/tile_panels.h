#pragma once
// Panels of bf16 operands for GEMMs with tiles (tiles.h), for kernel files (*.isa.cpp). A panel is 32 rows of the left
// operand, or 32 columns of the right operand. One step is 32 elements along k, 2 KiB of a panel:
//   left [step][32 rows][32 along k], right [step][2 tiles][16 pairs along k][16 columns][2].
// Missing rows, columns and elements along k are zero.
#include "ops/cpu/pairs.h"
#include "ops/cpu/tiles.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

constexpr int64_t kTilePanel = 2 * kTileRows;               // rows or columns of a panel
constexpr int64_t kStepElements = kTilePanel * kTileTerms;  // elements of a panel per step
constexpr int64_t kPairs = kTileTerms / 2;                  // pairs along k in a step

// --- packing ---

/// Packs rows of a non-transposed A, 64 bytes along k at a time.
void pack_a_terms(const bf16* src, int64_t ld, int64_t extent, int64_t k, bf16* dst) {
  const int64_t steps = (k + kTileTerms - 1) / kTileTerms, whole = k / kTileTerms;
  if (extent >= kTilePanel && whole == steps) {
    constexpr int64_t kAhead = 4 * kTileTerms;
    for (int64_t step = 0; step < steps; ++step, src += kTileTerms)
      for (int64_t row = 0; row < kTilePanel; ++row, dst += kTileTerms) {
        __builtin_prefetch(src + row * ld + kAhead);
        std::memcpy(dst, src + row * ld, kTileTerms * sizeof(bf16));
      }
    return;
  }
  for (int64_t row = 0; row < kTilePanel; ++row, dst += kTileTerms) {
    const bf16* const from = src + row * ld;
    for (int64_t step = 0; step < steps; ++step) {
      bf16* const to = dst + step * kStepElements;
      if (row < extent && step < whole) {
        std::memcpy(to, from + step * kTileTerms, kTileTerms * sizeof(bf16));
      } else {
        std::memset(to, 0, kTileTerms * sizeof(bf16));
        if (row < extent)
          std::memcpy(to, from + step * kTileTerms, static_cast<size_t>(k - whole * kTileTerms) * sizeof(bf16));
      }
    }
  }
}
/// Packs 32 elements along k of a panel of a transposed A, whose elements at the same k are contiguous in src and `ld`
/// apart along k, by transposing squares.
[[gnu::always_inline]] inline void pack_a_step(const bf16* src, int64_t ld, int64_t extent, int64_t terms, bf16* dst) {
  constexpr int64_t kTermsOfSquare = 2 * kPairLanes;
  for (int64_t term = 0; term < kTileTerms; term += kTermsOfSquare)
    if (extent >= kTilePanel && term + kTermsOfSquare <= terms) {
      for (int64_t row = 0; row < kTilePanel; row += kTermsOfSquare) {
        Pairs left[kPairLanes], right[kPairLanes];
#pragma GCC unroll 16
        for (int64_t i = 0; i < kPairLanes; ++i) {
          const bf16* const above = src + (term + 2 * i) * ld + row;
          const Halves even = load_halves(above), odd = load_halves(above + ld);
          left[i] = (Pairs)interleave<false>(even, odd), right[i] = (Pairs)interleave<true>(even, odd);
        }
        store_transposed(left, dst + row * kTileTerms + term, kTileTerms);
        store_transposed(right, dst + (row + kPairLanes) * kTileTerms + term, kTileTerms);
      }
    } else {
      for (int64_t row = 0; row < kTilePanel; row += kPairLanes) {
        Pairs square[kPairLanes];
#pragma GCC unroll 16
        for (int64_t i = 0; i < kPairLanes; ++i) {
          const int64_t t = term + 2 * i;
          const bf16* const above = src + t * ld + row;
          square[i] = t >= terms || row >= extent
                          ? Pairs{}
                          : pair_rows(above, t + 1 < terms ? above + ld : nullptr, extent - row);
        }
        store_transposed(square, dst + row * kTileTerms + term, kTileTerms);
      }
    }
}
/// Packs a transposed A into panels that are `panel` elements apart. Each row of src is read once, for all panels.
void pack_a_rows(const bf16* src, int64_t ld, int64_t extent, int64_t k, bf16* dst, int64_t panel) {
  for (int64_t term = 0; term < k; term += kTileTerms, src += kTileTerms * ld, dst += kStepElements)
    for (int64_t row = 0; row < extent; row += kTilePanel) {
      for (int64_t t = 0; t < at_most(kTileTerms, k - term - kTileTerms); ++t)
        ask_for(src + (kTileTerms + t) * ld + row, at_most(kTilePanel, extent - row));
      pack_a_step(src + row, ld, extent - row, k - term, dst + row / kTilePanel * panel);
    }
}

/// Returns the position in a panel of B of pair `pair` along k, column `column`.
[[gnu::always_inline]] constexpr int64_t pair_offset(int64_t pair, int64_t column) {
  return pair / kPairs * kStepElements + column / kTileRows * kTileElements + pair % kPairs * kTileTerms +
         column % kTileRows * 2;
}
[[gnu::always_inline]] inline bf16* pair_of(bf16* panel, int64_t pair, int64_t column) {
  return panel + pair_offset(pair, column);
}
/// Packs a non-transposed B: two rows of B make a row of pairs. Each row of pairs is written to all panels before the
/// next one, so that src is read in order.
void pack_b_rows(const bf16* src, int64_t ld, int64_t extent, int64_t k, bf16* dst, int64_t stride) {
  constexpr int64_t kAhead = 16;  // prefetch distance in rows
  const int64_t pairs = (k + kTileTerms - 1) / kTileTerms * kPairs, whole = extent / kTilePanel * kTilePanel;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const bf16* const above = src + 2 * pair * ld;
    const bf16* const below = 2 * pair + 1 < k ? above + ld : nullptr;
    if (2 * pair + 1 + kAhead < k) ask_for(above + kAhead * ld, extent), ask_for(below + kAhead * ld, extent);
    bf16* panel = dst;
    for (int64_t first = 0; first < extent; first += kTilePanel, panel += stride)
      if (first < whole && below != nullptr) {
        for (int64_t column = 0; column < kTilePanel; column += 2 * kPairLanes) {
          const Halves even = load_halves(above + first + column), odd = load_halves(below + first + column);
          store_halves(pair_of(panel, pair, column), interleave<false>(even, odd));
          store_halves(pair_of(panel, pair, column + kPairLanes), interleave<true>(even, odd));
        }
      } else {
        for (int64_t column = 0; column < kTilePanel; column += kPairLanes) {
          const int64_t at = first + column;
          const Pairs row = 2 * pair >= k || at >= extent
                                ? Pairs{}
                                : pair_rows(above + at, below == nullptr ? nullptr : below + at, extent - at);
          store_pairs(pair_of(panel, pair, column), row);
        }
      }
  }
}
/// Packs a transposed B, whose columns are contiguous along k in src, by transposing squares.
void pack_b_terms(const bf16* src, int64_t ld, int64_t extent, int64_t k, bf16* dst) {
  const int64_t padded = (k + kTileTerms - 1) / kTileTerms * kTileTerms;
  for (int64_t column = 0; column < kTilePanel; column += kPairLanes)
    for (int64_t term = 0; term < padded; term += 2 * kPairLanes) {
      Pairs square[kPairLanes];
#pragma GCC unroll 16
      for (int64_t i = 0; i < kPairLanes; ++i)
        square[i] = term >= k || column + i >= extent ? Pairs{} : row_pairs(src + (column + i) * ld + term, k - term);
      store_transposed(square, pair_of(dst, term / 2, column), kTileTerms);
    }
}

// --- GEMMs ---

/// sums[32][32], rows `ld` apart, (+)= a·b over the steps of two panels; between(step) runs between the
/// multiplications.
template <bool Backwards, typename Between>
[[gnu::always_inline]] inline void multiply_panels(int64_t steps, const bf16* a, const bf16* b, bool first, float* sums,
                                                   int64_t ld, Between between) {
  const int64_t pitch = ld * static_cast<int64_t>(sizeof(float)), half_way = kTileRows * ld;
  if (first) {
    clear_tile<0>();
    clear_tile<1>();
    clear_tile<2>();
    clear_tile<3>();
  } else {
    load_tile<0>(sums, pitch);
    load_tile<1>(sums + kTileRows, pitch);
    load_tile<2>(sums + half_way, pitch);
    load_tile<3>(sums + half_way + kTileRows, pitch);
  }
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t at = (Backwards ? steps - 1 - step : step) * kStepElements;
    load_passing_tile<4>(a + at);
    load_tile<6>(b + at);
    multiply_tiles<0, 4, 6>();
    load_tile<7>(b + at + kTileElements);
    multiply_tiles<1, 4, 7>();
    load_passing_tile<5>(a + at + kTileElements);
    multiply_tiles<2, 5, 6>();
    multiply_tiles<3, 5, 7>();
    between(step);
  }
  store_tile<0>(sums, pitch);
  store_tile<1>(sums + kTileRows, pitch);
  store_tile<2>(sums + half_way, pitch);
  store_tile<3>(sums + half_way + kTileRows, pitch);
}

}  // namespace
}  // namespace trainer::ops::TRAINER_ISA
