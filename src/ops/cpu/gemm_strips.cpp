// GEMMs of small batches in fp32 and with bf16 panels. A is packed first, a block of k at a time if it is large. Every
// task packs a strip of columns of B and multiplies it immediately, so that B is read from memory once, and the strip's
// panels stay in a core's caches. Pair kernels prefetch the strip that the same thread probably packs next.
#include <limits>

#include "ops/cpu/gemm_blocks.h"

namespace trainer::ops {
namespace {

// Strips of 32 columns, narrower last strips and (in fp32) prefetching the next strip gained nothing.
constexpr int64_t kStripBytes = int64_t{256} << 10;  // maximum bytes of B that a task packs at once
constexpr int64_t kStripCost = 8;                    // overhead of a task, in columns multiplied in that time
constexpr int64_t kFewRows = 512;
constexpr int64_t kWholeElements = int64_t{4} << 20;  // maximum elements of A if all of it is packed at once
constexpr int64_t kChunkTerms = 1024;                 // maximum terms of k packed at once if A is larger

/// Blocking of the GEMM.
struct Strips {
  template <typename T, typename C>
  Strips(const Gemm& op, const GemmKernels<T, C, T>& kernels, int threads)
      : m(op.c.shape[0]), n(op.c.shape[1]), sum(op.a.shape[1], kernels) {
    constexpr int64_t kSize = sizeof(T), kSumSize = sizeof(AccumulatorOf<T>);
    const int64_t most = std::clamp(kStripBytes / (sum.length * kSize), kernels.cols, kernels.strip_cols);
    double best = std::numeric_limits<double>::infinity();
    for (int64_t candidate = kernels.cols; candidate <= std::max(most, kernels.cols); candidate += kernels.cols) {
      const double tasks = static_cast<double>(divide_up(divide_up(n, candidate), threads) * threads);
      const double cost = tasks * static_cast<double>(candidate + kStripCost);
      if (cost <= best) best = cost, cols = candidate;
    }
    const auto aligned = [](int64_t bytes) { return round_up(bytes, int64_t{64}); };
    count = divide_up(n, cols);
    padded_rows = round_up(m, kernels.rows);
    chunk_blocks = m * op.a.shape[1] <= kWholeElements ? sum.count : std::max<int64_t>(1, kChunkTerms / sum.length);
    a_bytes = aligned(padded_rows * chunk_blocks * sum.length * kSize);
    b_bytes = aligned(cols * sum.length * kSize);
    sums_bytes = sum.count > 1 || kernels.whole_sums ? aligned(padded_rows * cols * kSumSize) : 0;
  }
  bool sums_shared() const { return chunk_blocks < sum.count; }  // the sums of every strip are kept between chunks of k
  int64_t bytes(int threads) const {
    return a_bytes + threads * b_bytes + (sums_shared() ? count : threads) * sums_bytes;
  }

  int64_t m, n, cols = 0, count = 0, padded_rows = 0;  // count: strips
  SumBlocks sum;
  int64_t chunk_blocks;                  // blocks of k for which A is packed at once
  int64_t a_bytes, b_bytes, sums_bytes;  // b: per thread; sums: per thread, or per strip if shared
};

/// The cache lines of elements [col, col + cols) × [term, term + terms) of op(B).
template <typename T>
Lines lines_of(const Operand<T>& b, int64_t col, int64_t cols, int64_t term, int64_t terms) {
  constexpr int64_t kSize = sizeof(T), kLine = 64;
  const int64_t rows = b.along_k ? cols : terms, elements = b.along_k ? terms : cols;
  return {reinterpret_cast<const char*>(b.at(col, term)), b.ld * kSize, rows, divide_up(elements * kSize, kLine)};
}

template <typename T, typename C>
void run_strips(Exec& ex, const Gemm& op, const GemmKernels<T, C, T>& kernels) {
  const int threads = ex.device.threads();
  const Strips plan(op, kernels, threads);
  const Scratch scratch = ex.take("gemm", {plan.bytes(threads)}, DType::u8);
  if (ex.device.dry()) return;

  device::ThreadPool& pool = device::pool_of(ex.device);
  const Operand<T> a = operand_of<T>(op.a, true), b = operand_of<T>(op.b, op.trans_b);
  const GemmStore<T, C> store = store_of<T, C>(op);
  const SumBlocks& sum = plan.sum;
  T* const a_panels = reinterpret_cast<T*>(scratch.tensor().data);
  std::byte* const b_memory = scratch.tensor().data + plan.a_bytes;
  std::byte* const sums_memory = b_memory + threads * plan.b_bytes;

  const int64_t panels = plan.padded_rows / kernels.rows;
  for (int64_t block0 = 0; block0 < sum.count; block0 += plan.chunk_blocks) {
    const int64_t blocks = std::min(plan.chunk_blocks, sum.count - block0);
    const auto a_of = [&](int64_t block) {
      return a_panels + plan.padded_rows * (sum.first(block) - sum.first(block0));
    };
    pool.parallel_for(panels * blocks, [&](int64_t task) {
      const int64_t block = block0 + task / panels, row = task % panels * kernels.rows;
      kernels.pack_a(a.at(row, sum.first(block)), a.ld, a.along_k, std::min(kernels.rows, plan.m - row),
                     sum.size(block), a_of(block) + row * sum.stored(block));
    });
    const auto lines_at = [&](int64_t strip, int64_t block) -> Lines {
      if (block >= sum.count) return {};
      const int64_t col = strip * plan.cols;
      return lines_of(b, col, std::min(plan.cols, plan.n - col), sum.first(block), sum.size(block));
    };
    // The first lines of the next strip in the worker's own share, or of its first strip in the next chunk.
    const auto next_strip = [&](int64_t strip, int worker) {
      const int64_t first = device::ThreadPool::first_task(plan.count, worker, threads);
      const int64_t end = device::ThreadPool::first_task(plan.count, worker + 1, threads);
      if (first <= strip && strip + 1 < end) return lines_at(strip + 1, block0);
      return first < end ? lines_at(first, block0 + blocks) : Lines{};
    };
    pool.parallel_for(plan.count, [&](int64_t strip, int worker) {
      const int64_t col = strip * plan.cols, cols = std::min(plan.cols, plan.n - col);
      T* const b_panels = reinterpret_cast<T*>(b_memory + worker * plan.b_bytes);
      std::byte* const sums = sums_memory + (plan.sums_shared() ? strip : worker) * plan.sums_bytes;
      for (int64_t block = block0; block < block0 + blocks; ++block) {
        const int64_t length = sum.stored(block);
        kernels.pack_b(b.at(col, sum.first(block)), b.ld, b.along_k, cols, sum.size(block), b_panels,
                       length * kernels.cols);
        const bool more = block + 1 < block0 + blocks;
        kernels.block({.k = length,
                       .a = a_of(block),
                       .b = b_panels,
                       .b_stride = length * kernels.cols,
                       .sums = reinterpret_cast<AccumulatorOf<T>*>(sums),
                       .col = col,
                       .rows = plan.m,
                       .cols = cols,
                       .next = more ? lines_at(strip, block + 1) : next_strip(strip, worker),
                       .first = block == 0,
                       .last = block + 1 == sum.count},
                      store);
      }
    });
  }
}

}  // namespace

bool packs_strips(const GemmTable& table, DType compute, int64_t m, int64_t k) {
  if (m > kFewRows || k == 0) return false;
  if (compute == DType::f32) return m * k <= table.f32.strip_elements;
  return compute == DType::bf16 && table.panels != nullptr && m * k <= table.panels->bf16_out.strip_elements;
}

void strip_product(Exec& ex, const Gemm& op, const GemmTable& table) {
  if (op.a.dtype == DType::f32) return run_strips(ex, op, table.f32);
  op.c.dtype == DType::bf16 ? run_strips(ex, op, table.panels->bf16_out)
                            : run_strips(ex, op, table.panels->f32_out_kept);
}

}  // namespace trainer::ops
