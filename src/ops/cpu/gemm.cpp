#include "ops/cpu/gemm.h"

#include <algorithm>
#include <limits>

#include "ops/cpu/elementwise_kernels.h"
#include "ops/cpu/gemm_blocks.h"
#include "ops/operands.h"

namespace trainer::ops {
namespace {

constexpr int64_t kPanelBytes = int64_t{16} << 20;  // bytes of B packed at a time: in L3 while all rows of A use them
constexpr int64_t kChunkCols = 1024;  // minimum columns per chunk, so that packing A again for each chunk costs little
constexpr int64_t kMostTerms = 8192;  // maximum k that is packed at once; for longer k, sums are kept between chunks
constexpr int64_t kPackStrip = 128;   // maximum columns of B per packing task
constexpr int64_t kPackCost = 12;     // cost of packing one element of A, in columns multiplied in that time
constexpr int64_t kTaskSums = int64_t{1} << 20;  // maximum bytes of sums that a task keeps in L2 between blocks

/// Blocking of a GEMM. C is divided into tiles of tile_cols columns. A chunk is the part of B that is packed at once:
/// chunk_tiles tiles by chunk_blocks blocks of k. A task computes task_rows rows by group_tiles tiles of a chunk.
struct Plan {
  template <typename T, typename C, typename P>
  Plan(const Gemm& op, const GemmKernels<T, C, P>& kernels, int threads);

  int64_t m, n, k;
  SumBlocks sum;
  int64_t tiles, tile_cols, chunk_tiles, chunk_blocks;
  int64_t task_rows, row_blocks, group_tiles;
  bool by_block;     // a task packs its rows of A one block at a time, and keeps the sums of its tiles between blocks
  bool sums_shared;  // k has several chunks, and the sums of all tiles are kept between them
  int64_t b_bytes, a_bytes, sums_bytes;  // a: per thread; sums: per thread unless shared

  int64_t chunk_cols() const { return chunk_tiles * tile_cols; }
  int64_t sums_count() const { return task_rows * tile_cols; }
  int64_t bytes(int threads) const { return b_bytes + threads * a_bytes + (sums_shared ? 1 : threads) * sums_bytes; }
};

template <typename T, typename C, typename P>
Plan::Plan(const Gemm& op, const GemmKernels<T, C, P>& kernels, int threads)
    : m(op.c.shape[0]), n(op.c.shape[1]), k(op.trans_a ? op.a.shape[0] : op.a.shape[1]), sum(k, kernels) {
  constexpr int64_t kSize = sizeof(P), kSumSize = sizeof(AccumulatorOf<T>);
  const bool packed = static_cast<bool>(op.packed_b);
  tiles = divide_up(n, kernels.block_cols);
  tile_cols = round_up(divide_up(n, tiles), kernels.cols);
  tiles = divide_up(n, tile_cols);

  chunk_tiles = tiles;
  by_block = kernels.by_block && sum.count > 1;
  int64_t chunk_terms = by_block ? sum.count * sum.length : kMostTerms;
  if (!packed) {
    const int64_t terms = sum.count * sum.length;
    const int64_t cols = std::max(kChunkCols, kPanelBytes / (terms * kSize));
    const int64_t chunks = divide_up(tiles, std::max<int64_t>(1, cols / tile_cols));
    chunk_tiles = divide_up(tiles, chunks);
    chunk_terms = std::min(chunk_terms, kPanelBytes / (chunk_cols() * kSize));
    // Every chunk reads and writes the sums, so they must be few compared with the operands' elements.
    const int64_t sums = m * chunk_cols();
    if (op.trans_a && !by_block && 2 * sums <= k * (m + chunk_cols()) && sums * kSumSize <= kPanelBytes)
      chunk_terms = std::min(chunk_terms, kernels.gradient_terms);
  }
  chunk_blocks = std::clamp<int64_t>(chunk_terms / sum.length, 1, sum.count);
  sums_shared = chunk_blocks < sum.count;

  int64_t most_rows = k <= kernels.whole_k ? kernels.whole_rows : kernels.block_rows;
  if (k <= kernels.whole_k && kernels.whole_elements > 0)
    most_rows = std::min(most_rows, kernels.whole_elements / std::max<int64_t>(1, k));
  const int64_t panels = divide_up(m, kernels.rows), most = std::max<int64_t>(1, most_rows / kernels.rows);
  double best = std::numeric_limits<double>::infinity();
  int64_t task_panels = 1;
  group_tiles = 1;
  for (int64_t p = std::min(most, panels); p >= std::min(divide_up(most, int64_t{2}), panels); --p)
    for (int64_t group = chunk_tiles; group >= 1; group = group == 1 ? 0 : divide_up(group, int64_t{2})) {
      if (by_block && group > 1 && p * kernels.rows * group * tile_cols * kSumSize > kTaskSums) continue;
      const int64_t tasks = divide_up(panels, p) * divide_up(chunk_tiles, group);
      const double task =
          static_cast<double>(p * (group * tile_cols + kPackCost)) + 0.5 * static_cast<double>(tile_cols);
      const double cost = task * static_cast<double>(divide_up(tasks, threads));
      if (!(cost < best)) continue;
      best = cost;
      task_panels = p;
      group_tiles = group;
    }
  task_rows = task_panels * kernels.rows;
  row_blocks = divide_up(m, task_rows);

  const auto aligned = [](int64_t bytes) { return round_up(bytes, int64_t{64}); };
  b_bytes = packed ? 0 : aligned(chunk_cols() * chunk_blocks * sum.length * kSize);
  a_bytes = aligned(task_rows * (by_block ? 1 : chunk_blocks) * sum.length * kSize);
  const bool kept = sum.count > 1 || kernels.whole_sums;
  const int64_t kept_tiles = sums_shared ? row_blocks * chunk_tiles : by_block ? group_tiles : 1;
  sums_bytes = kept ? aligned(sums_count() * kept_tiles * kSumSize) : 0;
}

/// Packs columns [col, col + cols) of op(B) over blocks [first, first + blocks) of k. dst is [block][panel][k][cols].
template <typename T, typename D, typename Pack>
void pack_columns(device::ThreadPool& pool, const Operand<T>& b, const SumBlocks& sum, int64_t first, int64_t blocks,
                  int64_t col, int64_t cols, int64_t panel_cols, D* dst, Pack pack_panels) {
  const int64_t strip = kPackStrip / panel_cols * panel_cols;  // whole panels
  const int64_t padded = round_up(cols, panel_cols), strips = divide_up(cols, strip);
  pool.parallel_for(strips * blocks, [&](int64_t task) {
    const int64_t block = first + task / strips, offset = task % strips * strip, length = sum.stored(block);
    D* const panels = dst + (sum.first(block) - sum.first(first)) * padded + offset * length;
    const int64_t part = std::min(strip, cols - offset);
    pack_panels(b.at(col + offset, sum.first(block)), b.ld, b.along_k, part, sum.size(block), panels,
                length * panel_cols);
  });
}

/// True if C can be written with non-temporal stores: it has whole cache lines, and is larger than a core's own caches.
/// Weight gradients of small batches gained nothing from them, and the gradient norm, which reads them next, took
/// longer.
template <typename C>
bool streams(const Tensor& c) {
  constexpr int64_t kLine = 64;
  return c.bytes() > kCoreCaches && reinterpret_cast<uintptr_t>(c.data) % kLine == 0 &&
         c.ld() * static_cast<int64_t>(sizeof(C)) % kLine == 0;
}

template <typename T, typename C, typename P>
void blocked_product(Exec& ex, const Gemm& op, const GemmKernels<T, C, P>& kernels) {
  using Sum = AccumulatorOf<T>;
  const Plan plan(op, kernels, ex.device.threads());
  const Scratch scratch = ex.take("gemm", {plan.bytes(ex.device.threads())}, DType::u8);
  if (ex.device.dry()) return;

  device::ThreadPool& pool = device::pool_of(ex.device);
  const Operand<T> a = operand_of<T>(op.a, !op.trans_a), b = operand_of<T>(op.b, op.trans_b);
  GemmStore<T, C> store = store_of<T, C>(op);
  const Epilogue& e = op.epilogue;
  store.stream = kernels.may_stream && streams<C>(op.c) && (!e.pre || e.gradient || streams<C>(e.pre));
  const bool packed = static_cast<bool>(op.packed_b);
  const SumBlocks& sum = plan.sum;
  std::byte* const b_memory = scratch.tensor().data;
  std::byte* const a_memory = b_memory + plan.b_bytes;
  std::byte* const sums_memory = a_memory + pool.threads() * plan.a_bytes;

  for (int64_t tile0 = 0; tile0 < plan.tiles; tile0 += plan.chunk_tiles) {
    const int64_t tiles = std::min(plan.chunk_tiles, plan.tiles - tile0), groups = divide_up(tiles, plan.group_tiles);
    const int64_t col0 = tile0 * plan.tile_cols, cols = std::min(plan.n - col0, tiles * plan.tile_cols);
    for (int64_t block0 = 0; block0 < sum.count; block0 += plan.chunk_blocks) {
      const int64_t blocks = std::min(plan.chunk_blocks, sum.count - block0), term0 = sum.first(block0);
      if (!packed && plan.k > 0)
        pack_columns(pool, b, sum, block0, blocks, col0, cols, kernels.cols, reinterpret_cast<P*>(b_memory),
                     kernels.pack_b);
      // Packed weights contain all columns and all of k, a chunk's panels only those of the chunk.
      const int64_t stored_cols = round_up(packed ? plan.n : cols, kernels.cols), panel_col0 = packed ? col0 : 0;
      const int64_t panel_term0 = packed ? 0 : term0, size = packed ? sizeof(T) : sizeof(P);
      const std::byte* const panels = packed ? op.packed_b.data : b_memory;

      pool.parallel_for(plan.row_blocks * groups, [&](int64_t task, int worker) {
        const int64_t row_block = task % plan.row_blocks, group = task / plan.row_blocks;
        const int64_t row = row_block * plan.task_rows, rows = std::min(plan.task_rows, plan.m - row);
        const int64_t padded_rows = round_up(rows, kernels.rows);
        P* const a_panels = reinterpret_cast<P*>(a_memory + worker * plan.a_bytes);
        const auto a_of = [&](int64_t block) {
          return plan.by_block ? a_panels : a_panels + padded_rows * (sum.first(block) - term0);
        };
        const auto pack_a = [&](int64_t block) {
          if (plan.k > 0)
            kernels.pack_a(a.at(row, sum.first(block)), a.ld, a.along_k, rows, sum.size(block), a_of(block));
        };
        const int64_t first_tile = group * plan.group_tiles, last_tile = std::min(tiles, first_tile + plan.group_tiles);
        const auto multiply = [&](int64_t tile, int64_t block) {
          const int64_t col = tile * plan.tile_cols, length = sum.stored(block);
          Sum* sums = reinterpret_cast<Sum*>(sums_memory + (plan.sums_shared ? 0 : worker * plan.sums_bytes));
          if (plan.sums_shared) {
            sums += (tile * plan.row_blocks + row_block) * plan.sums_count();
          } else if (plan.by_block) {
            sums += (tile - first_tile) * plan.sums_count();
          }
          const int64_t offset = (sum.first(block) - panel_term0) * stored_cols + (panel_col0 + col) * length;
          const GemmBlock<P, Sum> part{.k = length,
                                       .a = a_of(block),
                                       .b = panels + offset * size,
                                       .b_stride = length * kernels.cols,
                                       .sums = sums,
                                       .row = row,
                                       .col = col0 + col,
                                       .rows = rows,
                                       .cols = std::min(plan.tile_cols, cols - col),
                                       .first = block == 0,
                                       .last = block + 1 == sum.count};
          (packed ? kernels.block_kept : kernels.block)(part, store);
        };

        if (plan.by_block) {
          for (int64_t block = block0; block < block0 + blocks; ++block) {
            pack_a(block);
            for (int64_t tile = first_tile; tile < last_tile; ++tile) multiply(tile, block);
          }
        } else {
          for (int64_t block = block0; block < block0 + blocks; ++block) pack_a(block);
          for (int64_t tile = first_tile; tile < last_tile; ++tile)
            for (int64_t block = block0; block < block0 + blocks; ++block) multiply(tile, block);
        }
      });
    }
  }
}

/// Divides n columns of a small batch into strips, one per task. If strips are long streams of memory, each thread's
/// share has three rounds of them, the first two with 3/4 of its remaining columns: streams start slowly, and threads
/// wait for the last strip.
class ColumnStrips {
 public:
  ColumnStrips(int64_t n, int threads, bool long_streams)
      : n_(n),
        threads_(threads),
        rounds_(long_streams ? 3 : 1),
        per_round_(divide_up((long_streams ? 3 : 4) * divide_up(n, threads_), 4 * kSmallBatchCols)) {}
  int64_t count() const { return threads_ * rounds_ * per_round_; }
  /// The first column of a strip, which ends where the next one begins. It may be empty.
  int64_t begin(int64_t strip) const {
    const int64_t each = rounds_ * per_round_, share = strip / each, inside = strip % each;
    const int64_t first = n_ * share / threads_, end = n_ * (share + 1) / threads_;
    const int64_t done = inside % per_round_, round = inside / per_round_, quarters = round + 1 < rounds_ ? 3 : 4;
    const int64_t left = (end - first) * (4 * per_round_ - quarters * done) / (4 * per_round_) >> 2 * round;
    return std::min(n_, round_up(strip == count() ? n_ : end - left, kStripWidth));
  }

 private:
  int64_t n_, threads_, rounds_, per_round_;
};

/// A GEMM with m <= kSmallBatchRows is bound by reading B, which is read once: in place, or if `kept` from packed_b.
template <typename T, typename C, typename Panel>
void small_batch_product(Exec& ex, const Gemm& op, const GemmKernels<T, C, Panel>& kernels, bool kept) {
  using P = AccumulatorOf<T>;
  const int64_t m = op.c.shape[0], n = op.c.shape[1], k = op.trans_a ? op.a.shape[0] : op.a.shape[1];
  const Scratch scratch = ex.take("gemm", {small_batch_pad(m) * k}, DTypeOf<P>::value);
  if (ex.device.dry()) return;

  P* const x = scratch.tensor().as<P>();
  const Operand<T> a = operand_of<T>(op.a, !op.trans_a);
  kernels.pack_small_batch(a.data, a.ld, a.along_k, m, k, op.trans_b, x);

  const GemmStore<T, C> store = store_of<T, C>(op);
  const T* const b = op.b.as<T>();
  const int64_t ldb = op.b.ld();
  const PackedWeight<T> packed{kept ? reinterpret_cast<const T*>(op.packed_b.data) : nullptr, k,
                               SumBlocks(k, kernels).length, kernels.step, round_up(n, kernels.cols)};
  const ColumnStrips strips(n, ex.device.threads(), kept || op.trans_b);
  device::pool_of(ex.device).parallel_for(strips.count(), [&](int64_t strip) {
    const int64_t col = strips.begin(strip), cols = strips.begin(strip + 1) - col;
    if (cols == 0) return;
    if (op.trans_b)
      kernels.small_batch_trans(x, m, b, ldb, k, col, cols, store);
    else if (kept)
      kernels.small_batch_packed(x, m, packed, col, cols, store);
    else
      kernels.small_batch(x, m, b, ldb, k, col, cols, store);
  });
}

template <typename T, typename C, typename P>
void pack_weight(Exec& ex, const PackB& op, const GemmKernels<T, C, P>& kernels) {
  const int64_t k = op.b.shape[op.trans_b ? 1 : 0], n = op.b.shape[op.trans_b ? 0 : 1];
  const SumBlocks sum(k, kernels);
  pack_columns(device::pool_of(ex.device), operand_of<T>(op.b, op.trans_b), sum, 0, sum.count, 0, n, kernels.cols,
               reinterpret_cast<T*>(op.packed.data), kernels.pack_b_kept);
}

/// Calls fn with the vector kernels for the operands' dtype.
template <typename F>
void with_vectors(DType compute, DType result, const GemmTable& table, F&& fn) {
  switch (compute) {
    case DType::f64:
      return fn(table.f64);
    case DType::f32:
      return fn(table.f32);
    default:
      return result == DType::bf16 ? fn(table.bf16_out) : fn(table.bf16_f32_out);
  }
}

/// Calls fn with the kernels for bf16 panels if the dtype is bf16 and the table has them, or else with the vector
/// kernels. `kept`: those for packed weights, whose layout is that of bf16 results.
template <typename F>
void with_kernels(DType compute, DType result, bool kept, const GemmTable& table, F&& fn) {
  if (table.panels == nullptr || compute != DType::bf16) return with_vectors(compute, result, table, fn);
  if (result == DType::bf16) return fn(table.panels->bf16_out);
  fn(kept ? table.panels->f32_out_kept : table.panels->f32_out);
}

}  // namespace

const GemmTable& gemm_table(device::Isa isa) {
#ifndef TRAINER_WITHOUT_AVX512
  if (isa == device::Isa::amx) return avx512::gemm_table_tiles;
  if (isa == device::Isa::avx512bf16) return avx512::gemm_table_pairs;
#endif
  return TRAINER_KERNELS(isa, gemm_table);
}

/// True if op has so few rows (small-batch) that it is bound by reading B.
static bool is_small_batch(const Gemm& op) {
  const int64_t k = op.b.shape[op.trans_b ? 1 : 0];
  return op.c.shape[0] <= kSmallBatchRows && k > 0;
}

void own_product(Exec& ex, const Gemm& op, const GemmTable& table) {
  if (is_small_batch(op)) {
    const bool kept = op.packed_b && !op.trans_b;  // a transposed weight is read in order in place, too
    const auto multiply = [&](const auto& kernels) { small_batch_product(ex, op, kernels, kept); };
    if (kept) return with_kernels(op.a.dtype, op.c.dtype, true, table, multiply);
    with_vectors(op.a.dtype, op.c.dtype, table, multiply);
  } else if (!op.packed_b && !op.trans_a && packs_strips(table, op.a.dtype, op.c.shape[0], op.a.shape[1])) {
    strip_product(ex, op, table);
  } else {
    const bool kept = static_cast<bool>(op.packed_b);
    with_kernels(op.a.dtype, op.c.dtype, kept, table, [&](const auto& kernels) { blocked_product(ex, op, kernels); });
  }
}

int64_t own_packed_bytes(DType compute, int64_t k, int64_t n, const GemmTable& table) {
  int64_t bytes = 0;
  with_kernels(compute, compute, true, table, [&](const auto& kernels) {
    bytes = round_up(k, kernels.step) * round_up(n, kernels.cols) * size_of(compute);
  });
  return bytes;
}

void own_pack(Exec& ex, const PackB& op, const GemmTable& table) {
  if (ex.device.dry() || op.b.count() == 0) return;
  with_kernels(op.b.dtype, op.b.dtype, true, table, [&](const auto& kernels) { pack_weight(ex, op, kernels); });
}

}  // namespace trainer::ops
