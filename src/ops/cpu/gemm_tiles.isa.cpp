// GEMMs of bf16 matrices with tiles (tiles.h): the kernels of gemm_kernel.h for CPUs with a matrix unit.
//
// A panel of B stays in L1 while panels of A are read from L2. With four tiles of sums, four loads serve four
// multiplications. Every other block of C traverses k backwards, since the end of the panel is still in L1. The
// epilogue of finished sums processes a few rows at a time between the multiplications of the next block, so the vector
// units work while the matrix unit does.
#include "ops/cpu/panel_finish.h"
#include "ops/cpu/small_batch_panels.h"
#include "ops/cpu/tile_panels.h"

namespace trainer::ops::TRAINER_ISA {

extern const Bf16Table tile_table;

namespace {

constexpr int64_t kBlockSums = kTilePanel * kTilePanel;  // sums of a block of C

void pack_a(const bf16* src, int64_t ld, bool along_k, int64_t extent, int64_t k, bf16* dst) {
  const int64_t panel = (k + kTileTerms - 1) / kTileTerms * kStepElements;
  if (!along_k) return pack_a_rows(src, ld, extent, k, dst, panel);
  for (int64_t row = 0; row < extent; row += kTilePanel, dst += panel)
    pack_a_terms(src + row * ld, ld, extent - row, k, dst);
}
void pack_b(const bf16* src, int64_t ld, bool along_k, int64_t extent, int64_t k, bf16* dst, int64_t stride) {
  if (!along_k) return pack_b_rows(src, ld, extent, k, dst, stride);
  for (int64_t column = 0; column < extent; column += kTilePanel, dst += stride)
    pack_b_terms(src + column * ld, ld, extent - column, k, dst);
}

/// A block of finished sums that is being stored into C.
template <Ending Kind, typename C>
struct Finished {
  const float* sums = nullptr;
  int64_t row = 0, col = 0, rows = 0, cols = 0;  // position and extents in C

  [[gnu::always_inline]] void store_rows(int64_t n, const GemmStore<bf16, C>& s) {
    if (rows <= 0) return;
    n = at_most(n, rows);
    if (cols == kTilePanel) {
      for (int64_t i = 0; i < n; ++i) finish_row<Kind, kTilePanel>(sums + i * kTilePanel, row + i, col, s);
    } else {
      finish<true>(sums, kTilePanel, row, col, n, cols, s);
    }
    sums += n * kTilePanel, row += n, rows -= n;
  }
};

/// Prefetches `lines` lines of the next operands at every step.
struct Ahead {
  const char* next;
  int64_t lines;
  [[gnu::always_inline]] void ask() {
    for (int64_t i = 0; i < lines; ++i, next += kLine) __builtin_prefetch(next, 0, 2);
  }
};

template <Ending Kind, typename C>
void block_as(const GemmBlock<bf16, float>& g, const GemmStore<bf16, C>& s) {
  configure_tiles();
  const int64_t steps = g.k / kTileTerms, rows_per_step = steps == 0 ? 0 : (kTilePanel + steps - 1) / steps;
  const int64_t row_panels = (g.rows + kTilePanel - 1) / kTilePanel,
                col_panels = (g.cols + kTilePanel - 1) / kTilePanel;
  const bool whole = g.first && g.last;
  alignas(64) float own[2][kBlockSums];  // for sums of one block: one is computed while the other is finished
  Finished<Kind, C> finished;
  float* sums = g.sums;
  for (int64_t j = 0; j < col_panels; ++j) {
    const bf16* const b = static_cast<const bf16*>(g.b) + j * g.b_stride;
    // A panel has 32 lines per step. The next panel is prefetched while this one is multiplied with all row panels.
    Ahead next_b{reinterpret_cast<const char*>(b + g.b_stride), (kTilePanel + row_panels - 1) / row_panels};
    for (int64_t i = 0; i < row_panels; ++i) {
      const bf16* const a = g.a + i * g.k * kTilePanel;
      float* const to = whole ? own[(j * row_panels + i) % 2] : sums;
      const int64_t row = g.row + i * kTilePanel, col = g.col + j * kTilePanel;
      EndAhead<Kind, kTilePanel, C> end{s, row, col, g.last ? at_most(g.rows - i * kTilePanel, kTilePanel) : 0};
      const auto between = [&](int64_t) __attribute__((always_inline)) {
        next_b.ask();
        end.ask(rows_per_step);
        finished.store_rows(rows_per_step, s);
      };
      // The direction depends on the position in C, not in the task: the order of a sum must not depend on how work is
      // divided.
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

template <typename C>
void block(const GemmBlock<bf16, float>& g, const GemmStore<bf16, C>& s) {
  with_ending(s, [&](auto kind) { block_as<kind()>(g, s); });
}

using PanelsOfB = PairPanels<kTilePanel, pair_offset>;

/// Blocks for 48 KiB of L1 and 2 MiB of L2. For k up to 1024, a task's rows of A (1 MiB) stay in L2. For larger k, 256
/// × 512 sums and 512 elements along k of 256 rows do (768 KiB).
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
          .by_block = true,
          .may_stream = true,
          .pack_a = pack_a,
          .pack_b = pack_b,
          .pack_b_kept = pack_b,
          .block = block<C>,
          .block_kept = block<C>,
          .pack_small_batch = pack_small_batch<bf16>,
          .small_batch_packed = small_batch_packed<true, PanelsOfB>};
}

}  // namespace

constinit const Bf16Table tile_table{
    .bf16_out = kernels<bf16>(), .f32_out = kernels<float>(), .f32_out_kept = kernels<float>()};

}  // namespace trainer::ops::TRAINER_ISA
