#include "ops/cpu/gemm_kernel.h"

#include "ops/cpu/small_batch_panels.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

// --- GEMMs of panels ---

/// Computes sums[r][c] + Σ_k a[k][r]·b[k][c], without `sums` if `first`, and calls put(r, c, vector) for each vector of
/// results, the first of which is in column c. Each step along k prefetches the next `share` bytes at `next`.
template <int R, typename P, typename Put>
[[gnu::always_inline]] inline void micro_kernel(int64_t k, const P* a, const P* b, const P* sums, bool first,
                                                const char* next, int64_t share, Put put) {
  constexpr int L = kLanes<P>;
  Vec<P> acc[R][2] = {};
#pragma GCC unroll 4
  for (int64_t term = 0; term < k; ++term, a += R, b += 2 * L, next += share) {
    __builtin_prefetch(next, 0, 2);
    const Vec<P> b0 = load(b), b1 = load(b + L);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec<P> x = splat(a[r]);
      acc[r][0] = fmadd(x, b0, acc[r][0]);
      acc[r][1] = fmadd(x, b1, acc[r][1]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r, sums += 2 * L) {
    put(r, 0, first ? acc[r][0] : load(sums) + acc[r][0]);
    put(r, L, first ? acc[r][1] : load(sums + L) + acc[r][1]);
  }
}

/// Prefetches the rows of C, `pre` and `residual` that the epilogue of a tile accesses. The rows are too short and too
/// far apart for the hardware prefetcher.
template <typename T, typename C>
[[gnu::always_inline]] inline void prefetch_results(const GemmStore<T, C>& s, int64_t row, int64_t rows, int64_t col) {
  for (int64_t i = row; i < row + rows; ++i) {
    __builtin_prefetch(s.c + i * s.ldc + col, 1);
    if (s.pre != nullptr) __builtin_prefetch(s.pre + i * s.ld_pre + col, 1);
    if (s.residual != nullptr) __builtin_prefetch(s.residual + i * s.ld_residual + col);
  }
}

/// B is the dtype of the column panels, P or T. Each column panel stays in L1 while all row panels are multiplied with
/// it.
template <int R, bool Near, typename B, typename T, typename C>
void block(const GemmBlock<AccumulatorOf<T>>& g, const GemmStore<T, C>& s) {
  using P = AccumulatorOf<T>;
  constexpr int kWidth = kCols<P>;
  alignas(64) P widened[std::is_same_v<B, P> ? 1 : kBlockK / kShare<P> * kWidth];
  P* sums = g.sums;
  const bool bare = s.bias == nullptr && s.pre == nullptr && s.residual == nullptr && s.act == Activation::none;
  for (int64_t j = 0; j < g.cols; j += kWidth) {
    const B* kept = static_cast<const B*>(g.b) + j / kWidth * g.b_stride;
    const P* b;
    if constexpr (std::is_same_v<B, P>) {
      b = kept;
    } else {
      for (int64_t i = 0; i < g.k * kWidth; i += kLanes<P>) store(widened + i, load(kept + i));
      b = widened;
    }
    // The next panel comes from L3 or memory, so each step along k of each row panel prefetches a share of it. One line
    // at a time costs little; dozens at once would delay the loads of the multiplications.
    const char* next = reinterpret_cast<const char*>(kept + g.b_stride);
    const int64_t row_panels = (g.rows + R - 1) / R;
    const int64_t share = (kWidth * static_cast<int64_t>(sizeof(B)) + row_panels - 1) / row_panels;
    const P* a = g.a;
    for (int64_t i = 0; i < g.rows; i += R, a += g.k * R, sums += R * kWidth, next += share * g.k) {
      const int64_t rows = at_most(g.rows - i, R), cols = at_most(g.cols - j, kWidth);
      // A tile of few rows has few lines, which may be prefetched all at once.
      if constexpr (R <= 6)
        if (g.last) prefetch_results(s, g.row + i, rows, g.col + j);
      if constexpr (std::is_same_v<C, P>) {
        if (g.last && bare && rows == R && cols == kWidth) {  // results need not pass through `sums`
          C* const c = s.c + (g.row + i) * s.ldc + g.col + j;
          micro_kernel<R>(g.k, a, b, sums, g.first, next, share, [&](int r, int column, Vec<P> x) {
            C* const to = c + r * s.ldc + column;
            store(to, s.accumulate ? x + load(to) : x);
          });
          continue;
        }
      }
      micro_kernel<R>(g.k, a, b, sums, g.first, next, share,
                      [&](int r, int column, Vec<P> x) { store(sums + r * kWidth + column, x); });
      if (g.last) finish<Near>(sums, kWidth, g.row + i, g.col + j, rows, cols, s);
    }
  }
}

// --- small batches: B is read once, and packed only if it is a constant weight ---

/// Prefetches what is read kAhead bytes later: in the same row at `at`, of which `left` elements are not read yet, or
/// else in the row that is read next, `next` elements after the begin of this one. A whole row ahead would be too far:
/// rows of B are often a power of two apart, and then compete for the same few sets of the caches.
template <typename T>
[[gnu::always_inline]] inline void ask_ahead(const T* at, int64_t left, int64_t length, int64_t next) {
  constexpr int64_t kAhead = 512 / static_cast<int64_t>(sizeof(T));
  __builtin_prefetch(at + kAhead + (left > kAhead ? 0 : next - length));
}

/// Sums of M rows stay in L1 while B is read kTerms rows at a time.
template <int M, bool Near, typename T, typename C>
void small_batch_rows(const AccumulatorOf<T>* x, int64_t m, const T* b, int64_t ldb, int64_t k, int64_t col,
                      int64_t cols, const GemmStore<T, C>& s) {
  using P = AccumulatorOf<T>;
  constexpr int L = kLanes<P>, kTerms = 8;
  alignas(64) P sums[M * kSmallBatchCols] = {};
  const int64_t whole = cols / L * L;
  b += col;
  int64_t term = 0;
  for (; term + kTerms <= k; term += kTerms)
    for (int64_t j = 0; j < whole; j += L) {
      Vec<P> acc[M];
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) acc[i] = load(sums + i * kSmallBatchCols + j);
#pragma GCC unroll 8
      for (int t = 0; t < kTerms; ++t) {
        const T* const at = b + (term + t) * ldb + j;
        const Vec<P> w = load(at);
        ask_ahead(at, whole - j, whole, kTerms * ldb);
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i) acc[i] = fmadd(splat(x[(term + t) * M + i]), w, acc[i]);
      }
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) store(sums + i * kSmallBatchCols + j, acc[i]);
    }
  const int64_t done = term;
  for (int64_t j = 0; j < cols; j += L) {
    const int64_t lanes = at_most(cols - j, L);
    for (int64_t t = lanes == L ? done : 0; t < k; ++t) {
      const Vec<P> w = lanes == L ? load(b + t * ldb + j) : load_n(b + t * ldb + j, lanes);
      for (int i = 0; i < M; ++i) {
        P* const sum = sums + i * kSmallBatchCols + j;
        store(sum, fmadd(splat(x[t * M + i]), w, load(sum)));
      }
    }
  }
  finish<Near>(sums, kSmallBatchCols, 0, col, m, cols, s);
}

/// Panels of [k][two vectors of columns]. If Split, the vectors are the even and the odd columns, which takes the
/// fewest instructions for bf16; with 8 rows, shuffling the sums every few terms costs more than it saves.
template <typename T, bool Split>
struct RowPanels {
  using P = AccumulatorOf<T>;
  static constexpr int kVectors = 2, kStep = 1, L = kLanes<P>;
  static constexpr int kTogether = std::is_same_v<T, bf16> ? 4 : 2;  // bf16 has half the bytes

  [[gnu::always_inline]] static void load_terms(const T* panel, int64_t term, Vec<P> (&w)[kStep][kVectors]) {
    const T* const at = panel + term * 2 * L;
    if constexpr (Split) {
      const Halves both = load_halves(at);
      w[0][0] = even_elements(both), w[0][1] = odd_elements(both);
    } else {
      w[0][0] = load(at), w[0][1] = load(at + L);
    }
  }
  [[gnu::always_inline]] static void load_sums(const P* sums, Vec<P>* acc) {
    const Vec<P> a = load(sums), b = load(sums + L);
    acc[0] = Split ? shuffled<[](int i) { return 2 * i; }>(a, b) : a;
    acc[1] = Split ? shuffled<[](int i) { return 2 * i + 1; }>(a, b) : b;
  }
  [[gnu::always_inline]] static void store_sums(P* sums, const Vec<P>* acc) {
    constexpr auto low = [](int i) { return i / 2 + i % 2 * L; };
    constexpr auto high = [](int i) { return (L + i) / 2 + i % 2 * L; };
    store(sums, Split ? shuffled<low>(acc[0], acc[1]) : acc[0]);
    store(sums + L, Split ? shuffled<high>(acc[0], acc[1]) : acc[1]);
  }
};
/// Reading the next weights while other operators run, and more rows of sums at a time, made decoding no faster.
/// Computes dot products of M rows of x with W rows of b, which share the loads. Rows of b are ldb elements apart,
/// their sums `apart`.
template <int M, int W, typename T>
[[gnu::always_inline]] inline void small_batch_dots(const AccumulatorOf<T>* x, const T* b, int64_t ldb, int64_t k,
                                                    AccumulatorOf<T>* sums, int64_t apart) {
  using P = AccumulatorOf<T>;
  constexpr int L = kLanes<P>;
  Vec<P> acc[M][W] = {};
  int64_t term = 0;
  for (; term + L <= k; term += L) {
    Vec<P> w[W];
#pragma GCC unroll 4
    for (int j = 0; j < W; ++j) {
      w[j] = load(b + j * ldb + term);
      // Rows beyond the first M read b from L1, and no hardware prefetcher goes on reading memory meanwhile.
      if constexpr (M > 2) __builtin_prefetch(reinterpret_cast<const char*>(b + j * ldb + term) + kBytesAhead);
    }
#pragma GCC unroll 4
    for (int i = 0; i < M; ++i) {
      const Vec<P> row = load(x + i * k + term);
#pragma GCC unroll 4
      for (int j = 0; j < W; ++j) acc[i][j] = fmadd(row, w[j], acc[i][j]);
    }
  }
  if (term < k)
    for (int j = 0; j < W; ++j) {
      const Vec<P> w = load_n(b + j * ldb + term, k - term);
      for (int i = 0; i < M; ++i) acc[i][j] = fmadd(load_n(x + i * k + term, k - term), w, acc[i][j]);
    }
  for (int i = 0; i < M; ++i) {
    P row[W];
    lane_sums<W, P>(acc[i], row);
    for (int j = 0; j < W; ++j) sums[i * kSmallBatchCols + j * apart] = row[j];
  }
}

/// Reads b as W long streams, one in each part of the columns, as small_batch_panels does.
template <int M, bool Near, typename T, typename C>
void small_batch_dot_rows(const AccumulatorOf<T>* x, int64_t m, const T* b, int64_t ldb, int64_t k, int64_t col,
                          int64_t cols, const GemmStore<T, C>& s) {
  constexpr int R = M < 4 ? M : 4, W = R < 4 ? 4 : 3;  // R × W vectors of sums fit in the registers
  alignas(64) AccumulatorOf<T> sums[M * kSmallBatchCols];
  b += col * ldb;
  const auto multiply = [&](int64_t j, auto width, int64_t apart) __attribute__((always_inline)) {
    for (int row = 0; row < M; row += R)
      small_batch_dots<R, width>(x + row * k, b + j * ldb, apart * ldb, k, sums + row * kSmallBatchCols + j, apart);
  };
  const int64_t apart = cols / W;
  for (int64_t j = 0; j < apart; ++j) multiply(j, std::integral_constant<int, W>(), apart);
  for (int64_t j = W * apart; j < cols; ++j) multiply(j, std::integral_constant<int, 1>(), 1);
  finish<Near>(sums, kSmallBatchCols, 0, col, m, cols, s);
}

template <bool Near, typename T, typename C>
void small_batch(const AccumulatorOf<T>* x, int64_t m, const T* b, int64_t ldb, int64_t k, int64_t col, int64_t cols,
                 const GemmStore<T, C>& s) {
  with_small_batch(m, [&](auto rows) { small_batch_rows<rows, Near>(x, m, b, ldb, k, col, cols, s); });
}
template <bool Near, typename T, typename C>
void small_batch_trans(const AccumulatorOf<T>* x, int64_t m, const T* b, int64_t ldb, int64_t k, int64_t col,
                       int64_t cols, const GemmStore<T, C>& s) {
  with_small_batch(m, [&](auto rows) { small_batch_dot_rows<rows, Near>(x, m, b, ldb, k, col, cols, s); });
}

template <int R, typename T, typename C, bool Near = false>
constexpr GemmKernels<T, C> kernels() {
  using P = AccumulatorOf<T>;
  return {.rows = R,
          .cols = kCols<P>,
          .block_k = kBlockK / kShare<P>,
          .block_rows = kBlockRows / R * R,
          .whole_rows = kBlockRows / R * R,
          .block_cols = kBlockCols / kShare<P>,
          .gradient_terms = kGradientTerms / kShare<P>,
          .by_block = kByBlock,
          .strip_elements = int64_t{16} << 20,
          .pack_a = pack_a<R, T>,
          .pack_b = pack_b<T, P>,
          .pack_b_kept = pack_b<T, T>,
          .block = block<R, Near, P, T, C>,
          .block_kept = block<R, Near, T, T, C>,
          .pack_small_batch = pack_small_batch<T>,
          .small_batch = small_batch<Near, T, C>,
          .small_batch_trans = small_batch_trans<Near, T, C>,
          .small_batch_packed = small_batch_packed<Near, RowPanels<T, std::is_same_v<T, bf16>>, RowPanels<T, false>>};
}

template <int R, bool Near = false>
constexpr GemmTable table(const Bf16Table* panels = nullptr) {
  return {.f64 = kernels<R, double, double>(),
          .f32 = kernels<R, float, float>(),
          .bf16_out = kernels<R, bf16, bf16, Near>(),
          .bf16_f32_out = kernels<R, bf16, float, Near>(),
          .panels = panels};
}

}  // namespace

constinit const GemmTable gemm_table = table<kRows>();
#ifdef TRAINER_BF16_PANELS
extern const Bf16Table pair_table;  // gemm_pairs.isa.cpp
extern const Bf16Table tile_table;  // gemm_tiles.isa.cpp
constinit const GemmTable gemm_table_pairs = table<kRows, true>(&pair_table);
constinit const GemmTable gemm_table_tiles = table<kRows, true>(&tile_table);
#endif

}  // namespace trainer::ops::TRAINER_ISA
