#pragma once
// Kernels of the GEMM, compiled once per instruction set (gemm_kernel.isa.cpp), and the table through which the driver
// (gemm.cpp) calls them. Blocking after Goto & van de Geijn 2008 and Van Zee & van de Geijn 2015 (BLIS).
//
// A panel is `rows` rows of op(A), or `cols` columns of op(B), over one block of k. It is stored in the order in which
// the micro-kernel reads it. Vector kernels read [k][rows] or [k][cols]; bf16 panel kernels read pairs along k, or
// tiles. Short panels are padded with zeros.
#include <cstdint>

#include "base/dtype.h"
#include "device/kernel_sets.h"
#include "ops/activation_kind.h"

namespace trainer::ops {

/// The epilogue and destination of finished sums: ops::Epilogue in plain pointers (null: absent).
template <typename T, typename C>
struct GemmStore {
  C* c = nullptr;
  int64_t ldc = 0;
  const T* bias = nullptr;
  C* pre = nullptr;
  int64_t ld_pre = 0;
  const C* residual = nullptr;
  int64_t ld_residual = 0;
  Activation act = Activation::none;
  bool gradient = false, accumulate = false;
  bool stream = false;  // write c and pre with non-temporal stores; only for whole lines and results larger than caches
};

/// Cache lines in memory: `rows` rows of `lines` adjacent ones, `pitch` bytes apart.
struct Lines {
  const char* data = nullptr;
  int64_t pitch = 0, rows = 0, lines = 0;
};

/// One block of k for one tile of C, which has `rows` × `cols` elements, the first at (row, col) of C.
template <typename Panel, typename Sum = Panel>
struct GemmBlock {
  int64_t k = 0;             // elements along k in this block, including the zero padding of its last step
  const Panel* a = nullptr;  // row panels, one after the other
  const void* b = nullptr;   // column panels, b_stride elements apart
  int64_t b_stride = 0;
  Sum* sums = nullptr;  // [column panel][row panel][kernel rows][kernel cols]: sums of the blocks so far
  int64_t row = 0, col = 0, rows = 0, cols = 0;
  Lines next{};  // prefetched during the multiplication, only by pair kernels; empty: B's next panel
  bool first = false, last = false;  // first: sums are not initialised yet; last: elements are finished and stored
};

/// A whole weight that pack_b_kept has packed: blocks of `block` terms of k, the last one shorter but padded to whole
/// steps. A block has panels of `cols` columns each, together `padded_cols`.
template <typename T>
struct PackedWeight {
  const T* data = nullptr;
  int64_t k = 0, block = 0, step = 0, padded_cols = 0;
};

/// T: operands; C: result; P: panels. Sums have T's accumulator type. x of the small-batch kernels is op(A), whose m <=
/// kSmallBatchRows rows are padded with zeros to m_pad = 1, 2, 4 or 8.
template <typename T, typename C, typename P = AccumulatorOf<T>>
struct GemmKernels {
  using Sum = AccumulatorOf<T>;

  int64_t rows = 0, cols = 0;  // the micro-kernel's register block
  int64_t step = 1;            // elements along k per step: panels are padded with zeros to whole steps
  // Longest block of k; if k <= whole_k, k is one block. Of these sizes, only these two affect the result's bits.
  int64_t block_k = 0, whole_k = 0;
  int64_t block_rows = 0;      // maximum rows of A per task, a multiple of rows
  int64_t whole_rows = 0;      // the same if k <= whole_k
  int64_t whole_elements = 0;  // maximum elements in those rows; 0: any number
  int64_t block_cols = 0;      // maximum columns of a tile of C, a multiple of cols
  // Maximum k of a chunk of a weight gradient, whose operands are both packed for one use. Sums are kept between
  // chunks. Ignored if by_block.
  int64_t gradient_terms = 8192;
  bool whole_sums = true;    // false: the kernel needs no memory for sums if k is a single block
  bool by_block = false;     // if k has several blocks: A is packed a block at a time, not for all of k at once
  int64_t strip_cols = 128;  // maximum columns of B that a small batch packs at once (gemm_strips.cpp)
  int64_t strip_elements = int64_t{4} << 20;  // maximum elements of A of such a batch
  bool may_stream = false;                    // large results are worth writing with non-temporal stores

  /// Packs `extent` rows of op(A) or columns of op(B) into panels. In dst, panels of A are k·rows elements apart (k
  /// rounded up to whole steps), those of B `stride`. along_k: a row (column) is contiguous along k in src; if not, the
  /// elements at the same k are contiguous.
  void (*pack_a)(const T* src, int64_t ld, bool along_k, int64_t extent, int64_t k, P* dst) = nullptr;
  void (*pack_b)(const T* src, int64_t ld, bool along_k, int64_t extent, int64_t k, P* dst, int64_t stride) = nullptr;
  /// Packs weights the same way, but keeps the operands' dtype.
  void (*pack_b_kept)(const T* src, int64_t ld, bool along_k, int64_t extent, int64_t k, T* dst,
                      int64_t stride) = nullptr;

  void (*block)(const GemmBlock<P, Sum>& block, const GemmStore<T, C>& store) = nullptr;       // b: P
  void (*block_kept)(const GemmBlock<P, Sum>& block, const GemmStore<T, C>& store) = nullptr;  // b: T

  /// Writes x = op(A) for the kernels below: [k][m_pad], or [m_pad][k] if `by_row`. along_k: see pack_a.
  void (*pack_small_batch)(const T* src, int64_t ld, bool along_k, int64_t m, int64_t k, bool by_row, Sum* x) = nullptr;
  /// Computes columns [col, col + cols) of C for row-major b [k, ·]; x [k][m_pad]; cols <= kSmallBatchCols.
  void (*small_batch)(const Sum* x, int64_t m, const T* b, int64_t ldb, int64_t k, int64_t col, int64_t cols,
                      const GemmStore<T, C>& store) = nullptr;
  /// The same for b [·, k] (trans_b); x [m_pad][k].
  void (*small_batch_trans)(const Sum* x, int64_t m, const T* b, int64_t ldb, int64_t k, int64_t col, int64_t cols,
                            const GemmStore<T, C>& store) = nullptr;
  /// The same as small_batch, bit for bit, for a packed b; col is the first column of a panel.
  void (*small_batch_packed)(const Sum* x, int64_t m, const PackedWeight<T>& b, int64_t col, int64_t cols,
                             const GemmStore<T, C>& store) = nullptr;
};

inline constexpr int64_t kSmallBatchRows = 8;
inline constexpr int64_t kSmallBatchCols = 2048;  // long enough for the hardware to prefetch a row
inline constexpr int64_t kStripWidth = 32;        // strips of columns begin at multiples of it
constexpr int64_t small_batch_pad(int64_t m) { return m <= 1 ? 1 : m <= 2 ? 2 : m <= 4 ? 4 : 8; }

/// Kernels for bf16 panels, with tiles or with pairs. Their small_batch_packed is the only kernel for small batches.
struct Bf16Table {
  GemmKernels<bf16, bf16, bf16> bf16_out;
  GemmKernels<bf16, float, bf16> f32_out;       // for operands that are not packed
  GemmKernels<bf16, float, bf16> f32_out_kept;  // for packed weights: same panels and blocks as bf16_out
};

struct GemmTable {
  GemmKernels<double, double> f64;
  GemmKernels<float, float> f32;
  GemmKernels<bf16, bf16> bf16_out;
  GemmKernels<bf16, float> bf16_f32_out;
  const Bf16Table* panels = nullptr;  // null: the kernels above compute bf16 GEMMs
};

// The avx512 version of gemm_table_tiles requires AMX, that of gemm_table_pairs AVX512-BF16. The versions for other
// instruction sets are plain C++ and exist only in builds with tests, so that the loops around tiles and pairs are
// tested on any CPU.
TRAINER_FOR_EACH_ISA(extern const GemmTable gemm_table, gemm_table_pairs, gemm_table_tiles;)

}  // namespace trainer::ops
