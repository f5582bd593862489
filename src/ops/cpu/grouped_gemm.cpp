#include "ops/cpu/grouped_gemm.h"

#include <cstring>
#include <limits>
#include <numeric>

#include "ops/cpu/gemm_blocks.h"

namespace trainer::ops {
namespace {

constexpr int64_t kTileRowBytes = int64_t{384} << 10, kTileColBytes = int64_t{512} << 10;  // a block of A, and one of B
constexpr int64_t kMostTileRows = 512, kMostTileCols = 1024;
constexpr int64_t kTilePackCost = 12;  // cost of packing one element, in columns multiplied in that time

/// The tiles of the results of all groups, and the memory of a task.
struct GroupTiles {
  /// `groups` results of about m rows each, with sums of at most k terms. `split_rows`: all have m rows, which are
  /// divided into equal tiles; if not, tiles have as many rows as are useful.
  template <typename T, typename C, typename P>
  GroupTiles(const GemmKernels<T, C, P>& kernels, int64_t groups, int64_t m, int64_t n, int64_t k, int threads,
             bool split_rows) {
    constexpr int64_t kSize = sizeof(P), kSumSize = sizeof(AccumulatorOf<T>);
    const int64_t longest = round_up(std::clamp<int64_t>(k, 1, std::max(kernels.block_k, kernels.whole_k)),
                                     std::max<int64_t>(8, kernels.step));
    const int64_t unit = std::lcm(kernels.cols, kStripWidth);
    const auto most = [&](int64_t bytes, int64_t step) {
      return std::max(step, bytes / (longest * kSize) / step * step);
    };
    const int64_t most_rows = std::min(most(kTileRowBytes, kernels.rows), kMostTileRows / kernels.rows * kernels.rows);
    const int64_t most_cols = std::min(most(kTileColBytes, unit), kMostTileCols);
    double best = std::numeric_limits<double>::infinity();
    for (int64_t parts = divide_up(m, most_rows);; parts *= 2) {
      const int64_t height = split_rows ? round_up(divide_up(m, parts), kernels.rows) : most_rows;
      for (int64_t strips = divide_up(n, most_cols);; strips *= 2) {
        const int64_t width = round_up(divide_up(n, strips), unit), used = std::min(height, m);
        const int64_t tasks = groups * divide_up(m, height) * divide_up(n, width);
        const auto task = static_cast<double>(used * width + kTilePackCost * (used + width));
        const double cost = task * static_cast<double>(divide_up(tasks, int64_t{threads}));
        if (cost < best) best = cost, rows = height, cols = width;
        if (width == unit) break;
      }
      if (!split_rows || height == kernels.rows) break;
    }
    const auto aligned = [](int64_t bytes) { return round_up(bytes, int64_t{64}); };
    a_bytes = aligned(rows * longest * kSize);
    b_bytes = aligned(cols * longest * kSize);
    const bool kept = kernels.whole_sums || SumBlocks(k, kernels).count > 1;
    bytes = a_bytes + b_bytes + (kept ? aligned(rows * cols * kSumSize) : 0);
  }
  int64_t rows = 0, cols = 0;                   // the most that a tile has
  int64_t a_bytes = 0, b_bytes = 0, bytes = 0;  // a thread's panels, and all its memory
};

/// Computes the tile of C in `tile`, which has its position and size, with panels in `memory`.
template <typename T, typename C, typename P>
void multiply_tile(const GemmKernels<T, C, P>& kernels, const Operand<T>& a, const Operand<T>& b, int64_t k,
                   GemmBlock<P, AccumulatorOf<T>> tile, const GemmStore<T, C>& store, const GroupTiles& tiles,
                   std::byte* memory) {
  P *const a_panels = reinterpret_cast<P*>(memory), *const b_panels = reinterpret_cast<P*>(memory + tiles.a_bytes);
  tile.a = a_panels;
  tile.b = b_panels;
  tile.sums = reinterpret_cast<AccumulatorOf<T>*>(memory + tiles.a_bytes + tiles.b_bytes);
  const SumBlocks sum(k, kernels);
  for (int64_t block = 0; block < sum.count; ++block) {
    tile.k = sum.stored(block);
    tile.b_stride = tile.k * kernels.cols;
    tile.first = block == 0;
    tile.last = block + 1 == sum.count;
    kernels.pack_a(a.at(tile.row, sum.first(block)), a.ld, a.along_k, tile.rows, sum.size(block), a_panels);
    kernels.pack_b(b.at(tile.col, sum.first(block)), b.ld, b.along_k, tile.cols, sum.size(block), b_panels,
                   tile.b_stride);
    kernels.block(tile, store);
  }
}

/// Calls fn with the kernels for results of the compute dtype, and with those for small batches.
template <typename F>
void with_group_kernels(DType compute, const GemmTable& table, F&& fn) {
  if (compute == DType::f64) return fn(table.f64, table.f64);
  if (compute == DType::f32) return fn(table.f32, table.f32);
  if (table.panels == nullptr) return fn(table.bf16_out, table.bf16_out);
  fn(table.panels->bf16_out, table.bf16_out);
}
/// Calls fn with the kernels for results of the accumulator dtype.
template <typename F>
void with_gradient_kernels(DType compute, const GemmTable& table, F&& fn) {
  if (compute == DType::f64) return fn(table.f64);
  if (compute == DType::f32) return fn(table.f32);
  if (table.panels == nullptr) return fn(table.bf16_f32_out);
  fn(table.panels->f32_out);
}

/// Rows of C that are computed together, all of one group.
struct RowBlock {
  int64_t group, first, rows;
  bool few;  // the group is a small batch
};

template <typename T, typename P>
void multiply_groups(Exec& ex, const GroupedGemm& op, const GemmKernels<T, T, P>& kernels,
                     const GemmKernels<T, T>& small) {
  const int64_t all = op.a.rows(), k = op.a.cols(), n = op.c.cols(), groups = std::ssize(op.rows);
  const int threads = ex.device.threads();
  const int64_t used = std::clamp<int64_t>(groups, 1, std::max<int64_t>(1, all));  // with about equal numbers of rows
  const GroupTiles tiles(kernels, used, divide_up(std::max<int64_t>(1, all), used), n, k, threads, false);
  const int64_t most_blocks = std::min(groups, all) + all / tiles.rows;
  const int64_t table_bytes = round_up(most_blocks * static_cast<int64_t>(sizeof(RowBlock)), int64_t{64});
  const int64_t small_bytes = kSmallBatchRows * k * static_cast<int64_t>(sizeof(AccumulatorOf<T>));
  const int64_t each = round_up(std::max(tiles.bytes, small_bytes), int64_t{64});
  const Scratch scratch = ex.take("gemm", {table_bytes + threads * each}, DType::u8);
  if (ex.device.dry()) return;

  RowBlock* const blocks = reinterpret_cast<RowBlock*>(scratch.tensor().data);
  std::byte* const memory = scratch.tensor().data + table_bytes;
  int64_t count = 0, first = 0;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t rows = op.rows[static_cast<size_t>(group)], parts = divide_up(rows, tiles.rows);
    for (int64_t done = 0; done < rows; ++count) {  // parts of about equal height
      const int64_t height = std::min(rows - done, round_up(divide_up(rows, parts), kernels.rows));
      blocks[count] = {group, first + done, height, rows <= kSmallBatchRows};
      done += height;
    }
    first += rows;
  }

  const int64_t strips = divide_up(n, tiles.cols);
  const Operand<T> a = operand_of<T>(op.a, true);
  device::pool_of(ex.device).parallel_for(count * strips, [&](int64_t task, int worker) {
    const RowBlock& block = blocks[task / strips];
    const int64_t col = task % strips * tiles.cols, cols = std::min(tiles.cols, n - col);
    const int64_t of_group = op.trans_b ? n : k;  // rows of b
    const Operand<T> b = operand_of<T>(op.b.row_range(block.group * of_group, of_group), op.trans_b);
    GemmStore<T, T> store{.c = op.c.as<T>(), .ldc = op.c.ld()};
    std::byte* const own = memory + worker * each;
    if (!block.few)
      return multiply_tile(kernels, a, b, k, {.row = block.first, .col = col, .rows = block.rows, .cols = cols}, store,
                           tiles, own);
    auto* const x = reinterpret_cast<AccumulatorOf<T>*>(own);
    store.c += block.first * store.ldc;
    small.pack_small_batch(a.at(block.first, 0), a.ld, true, block.rows, k, op.trans_b, x);
    (op.trans_b ? small.small_batch_trans : small.small_batch)(x, block.rows, b.data, b.ld, k, col, cols, store);
  });
}

template <typename T, typename C, typename P>
void multiply_gradients(Exec& ex, const GroupedWeightGradient& op, const GemmKernels<T, C, P>& kernels) {
  const int64_t m = op.x.cols(), n = op.dy.cols(), groups = std::ssize(op.rows);
  const int threads = ex.device.threads();
  const GroupTiles tiles(kernels, groups, m, n, std::max<int64_t>(1, op.x.rows()), threads, true);
  const int64_t firsts_bytes = round_up(groups * size_of(DType::i64), int64_t{64});
  const Scratch scratch = ex.take("gemm", {firsts_bytes + threads * tiles.bytes}, DType::u8);
  if (ex.device.dry()) return;

  int64_t* const firsts = reinterpret_cast<int64_t*>(scratch.tensor().data);
  std::byte* const memory = scratch.tensor().data + firsts_bytes;
  std::exclusive_scan(op.rows.begin(), op.rows.end(), firsts, int64_t{0});
  const int64_t across = divide_up(n, tiles.cols), down = divide_up(m, tiles.rows);
  device::pool_of(ex.device).parallel_for(groups * down * across, [&](int64_t task, int worker) {
    const int64_t group = task / across / down, row = task / across % down * tiles.rows;
    const int64_t col = task % across * tiles.cols, rows = std::min(tiles.rows, m - row);
    const int64_t cols = std::min(tiles.cols, n - col), k = op.rows[static_cast<size_t>(group)];
    const Tensor dw = op.dw.row_range(group * m, m);
    if (k == 0) {
      for (int64_t r = row; r < row + rows && !op.accumulate; ++r)
        std::memset(element_at(dw, r, col), 0, static_cast<size_t>(cols) * sizeof(C));
      return;
    }
    multiply_tile(kernels, operand_of<T>(op.x.row_range(firsts[group], k), false),
                  operand_of<T>(op.dy.row_range(firsts[group], k), false), k,
                  {.row = row, .col = col, .rows = rows, .cols = cols},
                  {.c = dw.as<C>(), .ldc = dw.ld(), .accumulate = op.accumulate}, tiles, memory + worker * tiles.bytes);
  });
}

static_assert(kMostTileCols <= kSmallBatchCols);

}  // namespace

void own_grouped(Exec& ex, const GroupedGemm& op, const GemmTable& table) {
  with_group_kernels(op.a.dtype, table,
                     [&](const auto& kernels, const auto& small) { multiply_groups(ex, op, kernels, small); });
}

void own_grouped(Exec& ex, const GroupedWeightGradient& op, const GemmTable& table) {
  with_gradient_kernels(op.x.dtype, table, [&](const auto& kernels) { multiply_gradients(ex, op, kernels); });
}

}  // namespace trainer::ops
