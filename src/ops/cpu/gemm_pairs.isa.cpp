// GEMMs of bf16 matrices with dot products of pairs (pairs.h): the kernels of gemm_kernel.h for CPUs whose vector unit
// multiplies bf16 faster than f32.
//
// A panel is [pair along k][rows or columns][2]. A register block is R rows × V vectors of sums: a pair of A, broadcast
// to all lanes, is multiplied by V vectors of B's pairs. A block of k continues from the sums of earlier blocks, so the
// result is bitwise identical for all block lengths. Results without an epilogue are stored from registers into C.
#include "ops/cpu/pairs.h"
#include "ops/cpu/panel_finish.h"
#include "ops/cpu/small_batch_panels.h"

namespace trainer::ops::TRAINER_ISA {

extern const Bf16Table pair_table;

namespace {

// --- packing ---

/// Stores the first N lanes.
template <int N>
[[gnu::always_inline]] inline void store_lanes(bf16* to, Pairs pairs) {
#if defined(__AVX512F__)
  if constexpr (N % kPairLanes != 0 && N > kPairLanes / 2)  // faster than storing parts
    return _mm512_mask_storeu_epi32(to, static_cast<__mmask16>((1u << N) - 1), (__m512i)pairs);
#endif
  store_first<N>(to, pairs);
}
/// Calls fn(first lane, lanes in use) for each vector of R lanes.
template <int R, typename F>
[[gnu::always_inline]] inline void each_group(F fn) {
  unrolled<(R + kPairLanes - 1) / kPairLanes>([&](auto g) __attribute__((always_inline)) {
    constexpr int kFirst = g * static_cast<int>(kPairLanes), kLeft = R - kFirst;
    fn(std::integral_constant<int, kFirst>(), std::integral_constant < int,
       kLeft<kPairLanes ? kLeft : static_cast<int>(kPairLanes)>());
  });
}

constexpr int64_t kTermsAhead =
    32;  // distance of prefetching along k: weight rows are too far apart for the hardware prefetcher

/// Packs two rows of src at a time into a row of pairs in every panel, so that src is read in order.
template <int R>
void pack_row_pairs(const bf16* src, int64_t ld, int64_t extent, int64_t k, bf16* dst, int64_t stride) {
  constexpr int L = static_cast<int>(kPairLanes), kWhole = 2 * L;
  constexpr auto low = [](int i) { return i / 2 + (i % 2 != 0 ? kWhole : 0); };
  constexpr auto high = [](int i) { return i / 2 + (i % 2 != 0 ? kWhole : 0) + L; };
  for (int64_t term = 0; term < k; term += 2, dst += 2 * R) {
    const bf16 *const above = src + term * ld, *const below = term + 1 < k ? above + ld : nullptr;
    if (term + 1 + kTermsAhead < k)
      ask_for(above + kTermsAhead * ld, extent), ask_for(below + kTermsAhead * ld, extent);
    int64_t row = 0;
    bf16* to = dst;
    // Two vectors of elements yield two vectors of pairs. Four panels share both, or one panel takes both.
    if constexpr (R == L / 2 || R == kWhole || R == L + kWhole) {
      constexpr int kPanels = R == L / 2 ? 4 : 1;
      for (; below != nullptr && row + kPanels * R <= extent; row += kPanels * R) {
        const Halves x = (Halves)load_pairs(above + row), y = (Halves)load_pairs(below + row);
        const Pairs first = (Pairs)shuffled<low>(x, y), second = (Pairs)shuffled<high>(x, y);
        if constexpr (kPanels == 4) {
          store_first<R>(to, first);
          store_first<R>(to + stride, half<true>(first));
          store_first<R>(to + 2 * stride, second);
          store_first<R>(to + 3 * stride, half<true>(second));
        } else {
          store_pairs(to, first);
          store_pairs(to + 2 * L, second);
          if constexpr (R > kWhole) store_pairs(to + 4 * L, pair_rows(above + row + kWhole, below + row + kWhole, L));
        }
        to += kPanels * stride;
      }
    }
    for (; row < extent; row += R, to += stride)
      each_group<R>([&](auto first, auto lanes) __attribute__((always_inline)) {
        const int64_t at = row + first, n = extent - at;
        store_lanes<lanes>(to + 2 * first,
                           n <= 0 ? Pairs{} : pair_rows(above + at, below == nullptr ? nullptr : below + at, n));
      });
  }
}

/// Packs a panel that is contiguous along k in src, by transposing squares.
template <int R>
void pack_term_pairs(const bf16* src, int64_t ld, int64_t extent, int64_t k, bf16* dst) {
  for (int64_t term = 0; term < k; term += 2 * kPairLanes) {
    const int64_t pairs = at_most((k - term + 1) / 2, kPairLanes);
    for (int64_t row = 0; row < at_most(R, extent); ++row) __builtin_prefetch(src + row * ld + term + 8 * kPairLanes);
    each_group<R>([&](auto first, auto lanes) __attribute__((always_inline)) {
      Pairs square[kPairLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kPairLanes; ++i)
        square[i] = i >= lanes || first + i >= extent ? Pairs{} : row_pairs(src + (first + i) * ld + term, k - term);
      transpose<uint32_t>(square);
      bf16* const to = dst + (term / 2 * R + first) * 2;
      if (pairs == kPairLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < kPairLanes; ++i) store_lanes<lanes>(to + i * 2 * R, square[i]);
      } else {
        for (int64_t i = 0; i < pairs; ++i) store_lanes<lanes>(to + i * 2 * R, square[i]);
      }
    });
  }
}

template <int R>
void pack_pairs(const bf16* src, int64_t ld, bool along_k, int64_t extent, int64_t k, bf16* dst, int64_t stride) {
  constexpr int64_t kTogether = R <= 16 ? 8 : 4;  // panels packed together; more would compete for few sets of L1
  if (along_k) {
    for (int64_t row = 0; row < extent; row += R, dst += stride)
      pack_term_pairs<R>(src + row * ld, ld, extent - row, k, dst);
  } else {
    for (int64_t row = 0; row < extent; row += kTogether * R, dst += kTogether * stride)
      pack_row_pairs<R>(src + row, ld, at_most(extent - row, kTogether * R), k, dst, stride);
  }
}
template <int R>
void pack_left(const bf16* src, int64_t ld, bool along_k, int64_t extent, int64_t k, bf16* dst) {
  pack_pairs<R>(src, ld, along_k, extent, k, dst, (k + 1) / 2 * 2 * R);
}

// --- GEMMs of panels ---

template <int R, int V>
using Sums = Vec<float>[R][V];

/// Prefetches the operands of later blocks, evenly over `steps` pairs: dozens of lines at once would delay the loads of
/// the multiplications, and Zen 5 ignores prefetches when too many loads are outstanding.
class Ahead {
 public:
  Ahead(const Lines& next, int64_t steps)
      : at_(next.data), lines_(next.lines), left_(next.lines), rows_(next.rows), skip_(next.pitch - lines_ * kLine) {
    const int64_t all = next.rows * next.lines;
    period_ = all == 0 ? kNever : steps < all ? 1 : steps / all;
    wait_ = period_;
  }
  /// The next block's sums so far, from L2 or L3, over `pairs` pairs. `sums` must be valid memory: a prefetch of a null
  /// pointer is slow.
  void start_sums(const float* sums, int64_t count, int64_t pairs) {
    sums_ = reinterpret_cast<const char*>(sums);
    sums_share_ = count == 0 ? 0 : (count * static_cast<int64_t>(sizeof(float)) + pairs - 1) / pairs;
  }
  [[gnu::always_inline]] void step() {
    __builtin_prefetch(sums_, 1, 3);
    sums_ += sums_share_;
    if (--wait_ > 0) return;
    wait_ = period_;
    __builtin_prefetch(at_, 0, 2);
    at_ += kLine;
    if (--left_ > 0) return;
    at_ += skip_;
    left_ = lines_;
    if (--rows_ == 0) wait_ = kNever;
  }

 private:
  static constexpr int64_t kNever = int64_t{1} << 62;
  const char *at_, *sums_ = nullptr;
  int64_t lines_, left_, rows_, skip_, period_ = 0, wait_ = 0, sums_share_ = 0;
};

/// Only the first Used of the R rows of a panel exist. Calls between(part) before each of `parts` parts of the pairs.
template <int Used, int R, int V, typename Between>
[[gnu::always_inline]] inline void multiply(int64_t pairs, const bf16* a, const bf16* b, Sums<R, V>& sums, Ahead& ahead,
                                            int64_t parts, Between between) {
  const int64_t most = (pairs + parts - 1) / parts;
  for (int64_t part = 0; pairs > 0; ++part, pairs -= most) {
    between(part);
#pragma GCC unroll 1  // if it is unrolled, GCC keeps some sums in memory
    for (int64_t left = at_most(most, pairs); left > 0; --left, a += 2 * R, b += 2 * V * kPairLanes) {
      ahead.step();
      Pairs columns[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) columns[v] = load_pairs(b + 2 * v * kPairLanes);
#pragma GCC unroll 16
      for (int r = 0; r < Used; ++r) {
        const Pairs x = splat_pair(a + 2 * r);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) add_dots(sums[r][v], x, columns[v]);
      }
    }
  }
}

/// Stores a vector of finished sums without an epilogue at its position in C.
[[gnu::always_inline]] inline void put_sums(float* c, Vec<float> x, const GemmStore<bf16, float>& s) {
  store(c, s.accumulate ? load(c) + x : x);
}
template <int R, int V>
[[gnu::always_inline]] inline void put_block(const Sums<R, V>& sums, float* c, int64_t rows,
                                             const GemmStore<bf16, float>& s) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r, c += s.ldc) {
    if (r == rows) return;
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) put_sums(c + v * kPairLanes, sums[r][v], s);
  }
}
template <int R>
[[gnu::always_inline]] inline void put_block(const Sums<R, 2>& sums, bf16* c, int64_t rows,
                                             const GemmStore<bf16, bf16>& s) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r, c += s.ldc) {
    if (r == rows) return;
    store_halves(c, round_halves(sums[r][0], sums[r][1]));
  }
}
/// Stores sums from memory, for columns that do not fill the block.
inline void put_part(const float* sums, int64_t cols, float* c, bool accumulate) {
  for (int64_t j = 0; j < cols; ++j) c[j] = accumulate ? c[j] + sums[j] : sums[j];
}
inline void put_part(const float* sums, int64_t cols, bf16* c, bool) {
  for (int64_t j = 0; j < cols; j += kPairLanes) {
    bf16 row[2 * kPairLanes];
    store_halves(row, round_halves(load(sums + j), Vec<float>{}));
    std::memcpy(static_cast<void*>(c + j), row, static_cast<size_t>(at_most(cols - j, kPairLanes)) * sizeof(bf16));
  }
}

/// Prefetches the lines of `rows` rows of C or `pre` for writing.
template <int64_t Width, typename C>
[[gnu::always_inline]] inline void ask_to_write(const C* elements, int64_t ld, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t at = 0; at < Width; at += kLine / static_cast<int64_t>(sizeof(C)))
      prefetch_to_write(elements + r * ld + at);
}

/// Stores a block of sums from memory. Not inlined: GCC would keep constants of the activation in registers, and some
/// of the sums of multiply() in memory.
template <Ending Kind, int64_t Width, typename C>
[[gnu::noinline]] void finish_block(const float* sums, int64_t row, int64_t col, int64_t rows, int64_t cols,
                                    const GemmStore<bf16, C>& s) {
  if (cols == Width) {
    for (int64_t r = 0; r < rows; ++r) finish_row<Kind, Width>(sums + r * Width, row + r, col, s);
  } else if (Kind != Ending::epilogue) {
    for (int64_t r = 0; r < rows; ++r) put_part(sums + r * Width, cols, s.c + (row + r) * s.ldc + col, s.accumulate);
  } else {
    finish<true>(sums, Width, row, col, rows, cols, s);
  }
}

/// Rows of a block whose lines of C and of the epilogue's operands are prefetched together.
constexpr int64_t kRowsPerPart = 2;

template <Ending Kind, int R, int V, typename C>
void block_as(const GemmBlock<bf16, float>& g, const GemmStore<bf16, C>& s) {
  constexpr int64_t kWidth = V * kPairLanes, kSums = R * kWidth;
  constexpr bool kBare = Kind != Ending::epilogue;
  const bool whole = g.first && g.last;
  alignas(64) float own[kSums];
  float* kept = g.sums;
  const int64_t row_panels = (g.rows + R - 1) / R, col_panels = (g.cols + kWidth - 1) / kWidth, pairs = g.k / 2;
  Ahead ahead(g.next, pairs * row_panels * col_panels);
  for (int64_t j = 0; j < g.cols; j += kWidth) {
    const bf16* const b = static_cast<const bf16*>(g.b) + j / kWidth * g.b_stride;
    const int64_t cols = at_most(g.cols - j, kWidth), col = g.col + j;
    if (g.next.rows == 0)
      ahead = Ahead({reinterpret_cast<const char*>(b + g.b_stride), 0, 1, V * pairs}, pairs * row_panels);
    const bf16* a = g.a;
    for (int64_t i = 0; i < g.rows; i += R, a += g.k * R) {
      const int64_t rows = at_most(g.rows - i, R), row = g.row + i;
      C* const c = s.c + row * s.ldc + col;
      Sums<R, V> sums;
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sums[r][v] = g.first ? Vec<float>{} : load(kept + r * kWidth + v * kPairLanes);
      ahead.start_sums(whole ? own : kept + kSums, whole ? 0 : kSums, pairs);
      EndAhead<Kind, kWidth, C> end{s, row, col, rows};
      const auto between = [&](int64_t part) __attribute__((always_inline)) {
        if (!g.last) return;
        const int64_t first = part * kRowsPerPart, n = at_most(kRowsPerPart, rows - first);
        if constexpr (Kind == Ending::epilogue) end.ask(n);
        ask_to_write<kWidth>(c + first * s.ldc, s.ldc, n);
        if (Kind == Ending::epilogue && s.pre != nullptr && !s.gradient)
          ask_to_write<kWidth>(s.pre + (row + first) * s.ld_pre + col, s.ld_pre, n);
      };
      const int64_t parts = g.last ? R / kRowsPerPart : 1;
      // The last panel may be short, and then requires fewer multiplications.
      if (rows <= 4) {
        multiply<4>(pairs, a, b, sums, ahead, parts, between);
      } else if (R > 8 && rows <= 8) {
        multiply<8>(pairs, a, b, sums, ahead, parts, between);
      } else {
        multiply<R>(pairs, a, b, sums, ahead, parts, between);
      }
      if (g.last && kBare && cols == kWidth) {
        put_block(sums, c, rows, s);
      } else {
        float* const to = g.last ? own : kept;
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
          for (int v = 0; v < V; ++v) store(to + r * kWidth + v * kPairLanes, sums[r][v]);
        if (g.last) finish_block<Kind, kWidth>(own, row, col, rows, cols, s);
      }
      if (!whole) kept += kSums;
    }
  }
}
template <int R, int V, typename C>
void block(const GemmBlock<bf16, float>& g, const GemmStore<bf16, C>& s) {
  with_ending(s, [&](auto kind) { block_as<kind(), R, V>(g, s); });
}

template <int R, int V, typename C>
constexpr GemmKernels<bf16, C, bf16> kernels(GemmKernels<bf16, C, bf16> sizes) {
  constexpr int kWidth = V * static_cast<int>(kPairLanes);
  sizes.rows = R;
  sizes.cols = kWidth;
  sizes.step = 2;
  sizes.whole_sums = false;
  sizes.pack_a = pack_left<R>;
  sizes.pack_b = sizes.pack_b_kept = pack_pairs<kWidth>;
  sizes.block = sizes.block_kept = block<R, V, C>;
  return sizes;
}
/// Tall blocks: a row is one cache line of bf16.
template <typename C>
constexpr GemmKernels<bf16, C, bf16> tall() {
  using Panels =
      PairPanels<2 * kPairLanes, [](int64_t pair, int64_t column) { return 2 * (pair * 2 * kPairLanes + column); }>;
  return kernels<14, 2, C>({.block_k = 1024,
                            .whole_k = 3072,
                            .block_rows = 126,
                            .whole_rows = 266,
                            .whole_elements = 126 * 3072,
                            .block_cols = 1024,
                            .strip_cols = 64,
                            .strip_elements = int64_t{16} << 20,
                            .pack_small_batch = pack_small_batch<bf16>,
                            .small_batch_packed = small_batch_packed<true, Panels>});
}
/// Wide blocks with a small number of rows write fewer lines of C at a time and read less of A. They are better for
/// weight gradients, which sum over all tokens and whose A is packed for every GEMM.
constexpr GemmKernels<bf16, float, bf16> wide() {
  return kernels<8, 3, float>(
      {.block_k = 512, .whole_k = 512, .block_rows = 256, .whole_rows = 256, .block_cols = 768, .by_block = true});
}

}  // namespace

// Blocks for 32 KiB of L1 and 1 MiB of L2.
constinit const Bf16Table pair_table{.bf16_out = tall<bf16>(), .f32_out = wide(), .f32_out_kept = tall<float>()};

}  // namespace trainer::ops::TRAINER_ISA
