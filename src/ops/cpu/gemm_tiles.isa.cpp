// Products of bf16 matrices by tiles (tiles.h): the kernels of gemm_kernel.h for CPUs with a matrix unit.
//
// A panel of B stays in L1 while panels of A pass by from L2; four tiles of sums take four products per four loads.
// Walking every other block of C backwards along k meets the end of the panel that is still in L1. Finished sums go
// through the epilogue a few rows at a time between the products of the next block, so that vectors work while the
// matrix unit does.
#include "ops/cpu/gemm_finish.h"
#include "ops/cpu/tile_panels.h"

namespace trainer::ops::TRAINER_ISA {

extern const Bf16Table tile_table;

namespace {

constexpr int64_t kBlockSums = kTilePanel * kTilePanel;  // sums of a block of C
constexpr int64_t kLine = 64;

void pack_a(const bf16* src, int64_t ld, bool along_k, int64_t extent, int64_t k, bf16* dst) {
  const int64_t panel = (k + kTileTerms - 1) / kTileTerms * kStepElements;
  for (int64_t row = 0; row < extent; row += kTilePanel, dst += panel)
    along_k ? pack_a_terms(src + row * ld, ld, extent - row, k, dst) : pack_a_rows(src + row, ld, extent - row, k, dst);
}
void pack_b(const bf16* src, int64_t ld, bool along_k, int64_t extent, int64_t k, bf16* dst, int64_t stride) {
  if (!along_k) return pack_b_rows(src, ld, extent, k, dst, stride);
  for (int64_t column = 0; column < extent; column += kTilePanel, dst += stride)
    pack_b_terms(src + column * ld, ld, extent - column, k, dst);
}

/// A block of finished sums on its way into C.
struct Finished {
  const float* sums = nullptr;
  int64_t row = 0, col = 0, rows = 0, cols = 0;  // of C

  template <typename C>
  [[gnu::always_inline]] void store_rows(int64_t n, const GemmStore<bf16, C>& s) {
    if (rows <= 0) return;
    finish(sums, kTilePanel, row, col, at_most(n, rows), cols, s);
    sums += n * kTilePanel, row += n, rows -= n;
  }
};

/// Asks for a share of what comes next at every step: `lines` of it.
struct Ahead {
  const char* next;
  int64_t lines;
  [[gnu::always_inline]] void ask() {
    for (int64_t i = 0; i < lines; ++i, next += kLine) __builtin_prefetch(next, 0, 2);
  }
};

template <typename C>
void block(const GemmBlock<bf16, float>& g, const GemmStore<bf16, C>& s) {
  configure_tiles();
  const int64_t steps = g.k / kTileTerms, rows_per_step = steps == 0 ? 0 : (kTilePanel + steps - 1) / steps;
  const int64_t row_panels = (g.rows + kTilePanel - 1) / kTilePanel,
                col_panels = (g.cols + kTilePanel - 1) / kTilePanel;
  const bool whole = g.first && g.last;
  alignas(64) float own[2][kBlockSums];  // of a sum of one block: one is formed while the other is finished
  Finished finished;
  // A panel has 32 lines per step: each panel of B is asked for while the row panels of the one before pass by, and the
  // row panels of the next block of the sum while all blocks of this one do.
  Ahead next_a{reinterpret_cast<const char*>(g.a + row_panels * g.k * kTilePanel),
               g.last ? 0 : (kTilePanel + col_panels - 1) / col_panels};
  float* sums = g.sums;
  for (int64_t j = 0; j < col_panels; ++j) {
    const bf16* const b = static_cast<const bf16*>(g.b) + j * g.b_stride;
    Ahead next_b{reinterpret_cast<const char*>(b + g.b_stride), (kTilePanel + row_panels - 1) / row_panels};
    for (int64_t i = 0; i < row_panels; ++i) {
      const bf16* const a = g.a + i * g.k * kTilePanel;
      float* const to = whole ? own[(j * row_panels + i) % 2] : sums;
      const auto between = [&](int64_t) __attribute__((always_inline)) {
        next_b.ask();
        next_a.ask();
        finished.store_rows(rows_per_step, s);
      };
      // By the place in C, not in the task: the order of a sum must not depend on how work is divided.
      const int64_t row = g.row + i * kTilePanel, col = g.col + j * kTilePanel;
      if ((row + col) / kTilePanel % 2 != 0) {
        multiply_panels<true>(steps, a, b, g.first, to, kTilePanel, between);
      } else {
        multiply_panels<false>(steps, a, b, g.first, to, kTilePanel, between);
      }
      finished.store_rows(kTilePanel, s);
      if (g.last)
        finished = {to, row, col, at_most(g.rows - i * kTilePanel, kTilePanel),
                    at_most(g.cols - j * kTilePanel, kTilePanel)};
      if (!whole) sums += kBlockSums;
    }
  }
  finished.store_rows(kTilePanel, s);
  if (s.stream) stream_fence();
}

/// Blocks for 48 KiB of L1 and 2 MiB of L2: up to 1024 terms a task's rows of A, 1 MiB, stay in L2; of longer sums,
/// 256 × 512 sums and 512 terms of 256 rows do, 768 KiB.
template <typename C>
constexpr GemmKernels<bf16, C, bf16> kernels() {
  return {.rows = kTilePanel,
          .cols = kTilePanel,
          .step = kTileTerms,
          .block_k = 512,
          .whole_k = 1024,
          .block_rows = 256,
          .whole_rows = 512,
          .block_cols = 512,
          .whole_sums = false,
          .may_stream = true,
          .pack_a = pack_a,
          .pack_b = pack_b,
          .pack_b_kept = pack_b,
          .block = block<C>,
          .block_kept = block<C>};
}

}  // namespace

constinit const Bf16Table tile_table{
    .bf16_out = kernels<bf16>(), .f32_out = kernels<float>(), .f32_out_kept = kernels<float>()};

}  // namespace trainer::ops::TRAINER_ISA
