#pragma once
// GEMMs of a small batch with a packed weight, for kernel files (*.isa.cpp): B is read from memory once, in long
// streams. Sums are added in the order of k, so the bits are those of an unpacked B (small_batch_rows), whatever the
// panels are.
//
// A Layout describes panels: kVectors vectors of columns, kStep terms of k that load_terms() returns together, and
// kTogether, the panels that are read at the same time for a single row.
#include "ops/cpu/gemm_finish.h"
#include "ops/cpu/gemm_pack.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

/// Calls fn with the padded number of rows as a type.
template <typename F>
void with_small_batch(int64_t m, F fn) {
  switch (small_batch_pad(m)) {
    case 1:
      return fn(std::integral_constant<int, 1>());
    case 2:
      return fn(std::integral_constant<int, 2>());
    case 4:
      return fn(std::integral_constant<int, 4>());
    default:
      return fn(std::integral_constant<int, 8>());
  }
}

/// The kernel of GemmKernels::pack_small_batch.
template <typename T>
void pack_small_batch(const T* src, int64_t ld, bool along_k, int64_t m, int64_t k, bool by_row, AccumulatorOf<T>* x) {
  using P = AccumulatorOf<T>;
  if (!by_row && m > 1)
    return with_small_batch(m, [&](auto rows) {
      if constexpr (rows > 1) pack<rows>(src, ld, along_k, m, k, x, k * rows);
    });
  for (int64_t row = 0; row < m; ++row) {
    int64_t term = 0;
    if (along_k)
      for (; term + kLanes<P> <= k; term += kLanes<P>) store(x + row * k + term, load(src + row * ld + term));
    for (; term < k; ++term) x[row * k + term] = static_cast<P>(along_k ? src[row * ld + term] : src[term * ld + row]);
  }
  for (int64_t i = m * k; i < small_batch_pad(m) * k; ++i) x[i] = 0;
}

/// The distance of prefetching in bytes: a page, at whose end hardware prefetchers stop.
constexpr int64_t kBytesAhead = 4096;

/// Rows that are multiplied together with a panel: their sums stay in registers. b is reread from L1 for the next rows.
constexpr int kRowsTogether = kRows < 12 ? 4 : 8;

/// Multiplies terms [first, last) of M rows of x with G panels of b. The panels are `stride` elements apart, their sums
/// `apart` elements.
template <typename Layout, int M, int G, typename T>
[[gnu::always_inline]] inline void small_batch_panel(const AccumulatorOf<T>* x, const T* b, int64_t stride,
                                                     int64_t first, int64_t last, AccumulatorOf<T>* sums,
                                                     int64_t apart) {
  using P = AccumulatorOf<T>;
  constexpr int R = M < kRowsTogether ? M : kRowsTogether, V = Layout::kVectors, S = Layout::kStep;
  constexpr int64_t kStepBytes = S * V * kLanes<P> * static_cast<int64_t>(sizeof(T));
#pragma GCC unroll 2
  for (int row = 0; row < M; row += R) {
    Vec<P> acc[R][G][V];
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) Layout::load_sums(sums + (row + i) * kSmallBatchCols + g * apart, acc[i][g]);
    const auto add = [&](int64_t term, auto terms) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) {
        Vec<P> w[S][V];
        Layout::load_terms(b + g * stride, term, w);
        const char* const next = reinterpret_cast<const char*>(b + g * stride + term * V * kLanes<P>) + kBytesAhead;
#pragma GCC unroll 4
        for (int line = 0; line < kStepBytes; line += 64) __builtin_prefetch(next + line);
        unrolled<terms>([&](auto t) __attribute__((always_inline)) {
#pragma GCC unroll 8
          for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) acc[i][g][v] = fmadd(splat(x[(term + t) * M + row + i]), w[t][v], acc[i][g][v]);
        });
      }
    };
    int64_t term = first;
    for (; term + S <= last; term += S) add(term, std::integral_constant<int, S>());
    if (term < last) add(term, std::integral_constant<int, 1>());  // the padding of an odd k is not added
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) Layout::store_sums(sums + (row + i) * kSmallBatchCols + g * apart, acc[i][g]);
  }
}

/// With few rows, several panels are multiplied at a time, since the sums of one panel would wait for the
/// latency of multiply-adds. These panels are far apart: each stream goes on with the adjacent panel, so that the
/// hardware prefetches a few long streams.
template <typename Layout, int M, bool Near, typename T, typename C>
void small_batch_panels(const AccumulatorOf<T>* x, int64_t m, const PackedWeight<T>& b, int64_t col, int64_t cols,
                        const GemmStore<T, C>& s) {
  using P = AccumulatorOf<T>;
  constexpr int64_t kWidth = Layout::kVectors * kLanes<P>,
                    kTerms = M <= kRowsTogether ? kBlockK : 16;  // rereads b while it is in L1
  static_assert(kSmallBatchCols % kWidth == 0 && kStripWidth % kWidth == 0);
  constexpr int kTogether = 2 * M > kRowsTogether ? 1 : M == 1 ? Layout::kTogether : 2;
  const int64_t panels = (cols + kWidth - 1) / kWidth;
  alignas(64) P sums[M * kSmallBatchCols] = {};
  for (int64_t first = 0; first < b.k; first += b.block) {
    const int64_t length = at_most(b.k - first, b.block), stored = (length + b.step - 1) / b.step * b.step;
    const int64_t stride = stored * kWidth;
    const T* panel = b.data + first * b.padded_cols + col * stored;
    int64_t j = 0;  // panels done
    const auto multiply = [&](auto together) __attribute__((always_inline)) {
      const int64_t apart = (panels - j) / together, end = j + apart;
      for (; j < end; ++j)
        for (int64_t t = 0; t < length; t += kTerms)
          small_batch_panel<Layout, M, together>(x + first * M, panel + j * stride, apart * stride, t,
                                                 at_most(length, t + kTerms), sums + j * kWidth, apart * kWidth);
      j += apart * (together - 1);
    };
    multiply(std::integral_constant<int, kTogether>());
    if constexpr (kTogether == 4) multiply(std::integral_constant<int, 2>());
    if constexpr (kTogether > 1) multiply(std::integral_constant<int, 1>());
  }
  finish<Near>(sums, kSmallBatchCols, 0, col, m, cols, s);
}

/// The kernel of GemmKernels::small_batch_packed.
template <bool Near, typename Layout, typename LayoutForEightRows = Layout, typename T, typename C>
void small_batch_packed(const AccumulatorOf<T>* x, int64_t m, const PackedWeight<T>& b, int64_t col, int64_t cols,
                        const GemmStore<T, C>& s) {
  with_small_batch(m, [&](auto rows) {
    using Used = std::conditional_t<rows == 8, LayoutForEightRows, Layout>;
    small_batch_panels<Used, rows, Near>(x, m, b, col, cols, s);
  });
}

/// Panels of pairs along k, the first element of a pair in the low half of its lane. Offset(pair, column): position in
/// a panel of `Width` columns.
template <int64_t Width, auto Offset>
struct PairPanels {
  static constexpr int L = kLanes<float>, kVectors = static_cast<int>(Width) / L, kStep = 2, kTogether = 2;

  [[gnu::always_inline]] static void load_terms(const bf16* panel, int64_t term, Vec<float> (&w)[kStep][kVectors]) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Halves pairs = load_halves(panel + Offset(term / 2, v * L));
      w[0][v] = even_elements(pairs), w[1][v] = odd_elements(pairs);
    }
  }
  [[gnu::always_inline]] static void load_sums(const float* sums, Vec<float>* acc) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) acc[v] = load(sums + v * L);
  }
  [[gnu::always_inline]] static void store_sums(float* sums, const Vec<float>* acc) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(sums + v * L, acc[v]);
  }
};

}  // namespace
}  // namespace trainer::ops::TRAINER_ISA
