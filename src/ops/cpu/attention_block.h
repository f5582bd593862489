#pragma once
// Block GEMMs inside attention: packed operands in L1 and L2, one thread. A register block is kRegisterRows rows by two
// vectors; every k step loads two vectors of B and broadcasts one element of A per row. Row r of a block attends to
// keys 0 … first + r − 1 of the block. Register blocks that are masked entirely are skipped.
#include "ops/cpu/lanes.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

#if defined(__AVX512F__)
inline constexpr int kRegisterRows = 12;
#else
inline constexpr int kRegisterRows = 6;
#endif
/// Columns of a register block.
template <typename T>
inline constexpr int64_t kPanel = 2 * kLanes<T>;

[[gnu::always_inline]] inline int64_t round_up_to(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// B of a GEMM: row k of panel p starts at data + p·panel_stride + k·row_stride.
template <typename T>
struct Panels {
  const T* data;
  int64_t panel_stride, row_stride;
};

/// c[R, NV vectors] (+)= a·b over k steps. a is [R, k], or [k, R] if kTransposed.
template <int R, int NV, bool kTransposed, bool kAdd, typename T>
[[gnu::noinline]] void register_block(int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb, T* c, int64_t ldc) {
  constexpr int64_t kWidth = kLanes<T>;
  Vec<T> acc[R][NV];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) acc[r][v] = kAdd ? load(c + r * ldc + v * kWidth) : Vec<T>{};
  }
#pragma GCC unroll 2
  for (int64_t step = 0; step < k; ++step) {
    Vec<T> columns[NV];
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) columns[v] = load(b + v * kWidth);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec<T> row = splat(kTransposed ? a[r] : a[r * lda]);
#pragma GCC unroll 2
      for (int v = 0; v < NV; ++v) acc[r][v] = fmadd(row, columns[v], acc[r][v]);
    }
    a += kTransposed ? lda : 1;
    b += ldb;
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) store(c + r * ldc + v * kWidth, acc[r][v]);
  }
}

template <int NV, bool kTransposed, bool kAdd, int R = kRegisterRows, typename T>
[[gnu::always_inline]] inline void register_rows(int64_t rows, int64_t k, const T* a, int64_t lda, const T* b,
                                                 int64_t ldb, T* c, int64_t ldc) {
  if constexpr (R > 1) {
    if (rows < R) return register_rows<NV, kTransposed, kAdd, R - 1>(rows, k, a, lda, b, ldb, c, ldc);
  }
  register_block<R, NV, kTransposed, kAdd>(k, a, lda, b, ldb, c, ldc);
}

/// One or two vectors of columns.
template <bool kTransposed, bool kAdd, typename T>
[[gnu::always_inline]] inline void register_product(int64_t rows, int64_t columns, int64_t k, const T* a, int64_t lda,
                                                    const T* b, int64_t ldb, T* c, int64_t ldc) {
  if (columns > kLanes<T>) {
    register_rows<2, kTransposed, kAdd>(rows, k, a, lda, b, ldb, c, ldc);
  } else {
    register_rows<1, kTransposed, kAdd>(rows, k, a, lda, b, ldb, c, ldc);
  }
}

/// Returns the rows of the next register block if `left` remain. The last two blocks share a short remainder evenly.
[[gnu::always_inline]] inline int64_t next_rows(int64_t left) {
  if (left <= kRegisterRows) return left;
  return left < 2 * kRegisterRows ? (left + 1) / 2 : kRegisterRows;
}

/// s[m, n] = a[m, k]·b for the visible columns. Values in other columns are undefined.
template <typename T>
void multiply_scores(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, Panels<T> b, T* s, int64_t lds,
                     int64_t first) {
  for (int64_t column = 0; column < n; column += kPanel<T>) {
    const T* panel = b.data + column / kPanel<T> * b.panel_stride;
    for (int64_t row = 0; row < m;) {
      const int64_t rows = next_rows(m - row);
      const int64_t visible = smaller(n, first + row + rows - 1);
      if (column < visible)
        register_product<false, false>(rows, visible - column, k, a + row * lda, lda, panel, b.row_stride,
                                       s + row * lds + column, lds);
      row += rows;
    }
  }
}

/// c[m, columns] (+)= p[m, n]·b, over the visible keys. All rows of a register block run to the last key visible to its
/// last row, so p must be zero from a row's own last visible key up to that one.
template <bool kAdd, typename T>
void weighted_rows(int64_t m, int64_t n, int64_t columns, const T* p, int64_t ldp, Panels<T> b, T* c, int64_t ldc,
                   int64_t first) {
  for (int64_t column = 0; column < columns; column += kPanel<T>) {
    const T* panel = b.data + column / kPanel<T> * b.panel_stride;
    for (int64_t row = 0; row < m;) {
      const int64_t rows = next_rows(m - row);
      const int64_t visible = larger(0, smaller(n, first + row + rows - 1));
      register_product<false, kAdd>(rows, columns - column, visible, p + row * ldp, ldp, panel, b.row_stride,
                                    c + row * ldc + column, ldc);
      row += rows;
    }
  }
}

/// c[n, columns] (+)= p[m, n]ᵀ·b[m, columns]: for each key, the sum over the rows that attend to it.
template <bool kAdd, typename T>
void transposed_product(int64_t m, int64_t n, int64_t columns, const T* p, int64_t ldp, Panels<T> b, T* c, int64_t ldc,
                        int64_t first) {
  for (int64_t column = 0; column < columns; column += kPanel<T>) {
    const T* panel = b.data + column / kPanel<T> * b.panel_stride;
    for (int64_t key = 0; key < n;) {
      const int64_t rows = next_rows(n - key);
      const int64_t start = smaller(m, larger(0, key - first + 1));
      register_product<true, kAdd>(rows, columns - column, m - start, p + start * ldp + key, ldp,
                                   panel + start * b.row_stride, b.row_stride, c + key * ldc + column, ldc);
      key += rows;
    }
  }
}

// Packing. Rows of an operand are too far apart for hardware prefetching.

inline constexpr int64_t kRowsAhead = 8;
template <typename Storage>
[[gnu::always_inline]] inline void prefetch_row(const Storage* x, int64_t columns) {
  for (int64_t c = 0; c < columns; c += 64 / static_cast<int64_t>(sizeof(Storage))) __builtin_prefetch(x + c);
}

/// panels[n / panel][columns][panel] <- x[n, columns] transposed; rows beyond n are zero in the last panel.
template <typename T, typename Storage>
void pack_transposed(int64_t n, int64_t columns, const Storage* x, int64_t ldx, T* panels) {
  constexpr int64_t kWidth = kLanes<T>;
  for (int64_t row = 0; row < n; row += kPanel<T>, panels += columns * kPanel<T>) {
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t begin = row + half * kWidth;
      for (int64_t i = begin + kWidth; i < smaller(n, begin + 2 * kWidth); ++i) prefetch_row(x + i * ldx, columns);
      for (int64_t column = 0; column < columns; column += kWidth) {
        const int64_t valid = smaller(kWidth, columns - column);
        Vec<T> square[kWidth];
#pragma GCC unroll 16
        for (int64_t i = 0; i < kWidth; ++i) {
          const Storage* from = x + (begin + i) * ldx + column;
          square[i] = begin + i >= n ? Vec<T>{} : valid == kWidth ? load(from) : load_n(from, valid);
        }
        transpose<T>(square);
        T* to = panels + column * kPanel<T> + half * kWidth;
#pragma GCC unroll 16
        for (int64_t i = 0; i < kWidth; ++i)
          if (i < valid) store(to + i * kPanel<T>, square[i]);
      }
    }
  }
}

/// rows[n, ld] <- factor·x[n, columns], zero beyond `columns`.
template <typename T, typename Storage>
void pack_rows(int64_t n, int64_t columns, const Storage* x, int64_t ldx, T factor, T* rows, int64_t ld) {
  for (int64_t row = 0; row < n; ++row, x += ldx, rows += ld) {
    if (row + kRowsAhead < n) prefetch_row(x + kRowsAhead * ldx, columns);
    each_vector<T>(columns, [&](int64_t c, auto tag) { store(rows + c, get(x + c, tag) * factor); });
    for (int64_t c = round_up_to(columns, kLanes<T>); c < ld; c += kLanes<T>) store(rows + c, Vec<T>{});
  }
}

}  // namespace
}  // namespace trainer::ops::TRAINER_ISA
