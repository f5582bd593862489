// Small-batch GEMMs with the kernels for bf16 panels. All of A is packed once. Every task packs a strip of columns of B
// and multiplies it immediately, so that B is read from memory once, and the strip's panels stay in a core's caches.
#include <limits>

#include "ops/cpu/gemm_blocks.h"

namespace trainer::ops {
namespace {

constexpr int64_t kStripBytes = int64_t{256} << 10;  // maximum bytes of B that a task packs at once
constexpr int64_t kStripCols = 128;                  // maximum columns of B per task
constexpr int64_t kStripCost = 8;                    // overhead of a task, in columns multiplied in that time
constexpr int64_t kFewRows = 512;
constexpr int64_t kFewElements = int64_t{4} << 20;  // maximum elements of A, which is packed as a whole

/// Blocking of the GEMM.
struct Strips {
  template <typename C>
  Strips(const Gemm& op, const GemmKernels<bf16, C, bf16>& kernels, int threads)
      : m(op.c.shape[0]), n(op.c.shape[1]), sum(op.a.shape[1], kernels) {
    constexpr int64_t kSize = sizeof(bf16), kSumSize = sizeof(float);
    const int64_t most = std::clamp(kStripBytes / (sum.length * kSize), kernels.cols, kStripCols);
    double best = std::numeric_limits<double>::infinity();
    for (int64_t candidate = kernels.cols; candidate <= std::max(most, kernels.cols); candidate += kernels.cols) {
      const double tasks = static_cast<double>(divide_up(divide_up(n, candidate), threads) * threads);
      const double cost = tasks * static_cast<double>(candidate + kStripCost);
      if (cost <= best) best = cost, cols = candidate;
    }
    const auto aligned = [](int64_t bytes) { return round_up(bytes, int64_t{64}); };
    padded_rows = round_up(m, kernels.rows);
    a_bytes = aligned(padded_rows * sum.count * sum.length * kSize);
    b_bytes = aligned(cols * sum.length * kSize);
    sums_bytes = sum.count > 1 ? aligned(padded_rows * cols * kSumSize) : 0;  // panel kernels never set whole_sums
  }
  int64_t m, n, cols = 0, padded_rows = 0;
  SumBlocks sum;
  int64_t a_bytes, b_bytes, sums_bytes;  // b, sums: per thread
};

template <typename C>
void run_strips(Exec& ex, const Gemm& op, const GemmKernels<bf16, C, bf16>& kernels) {
  const Strips plan(op, kernels, ex.device.threads());
  const int64_t own_bytes = plan.b_bytes + plan.sums_bytes;
  const Scratch scratch = ex.take("gemm", {plan.a_bytes + ex.device.threads() * own_bytes}, DType::u8);
  if (ex.device.dry()) return;

  device::ThreadPool& pool = device::pool_of(ex.device);
  const Operand<bf16> a = operand_of<bf16>(op.a, true), b = operand_of<bf16>(op.b, op.trans_b);
  const GemmStore<bf16, C> store = store_of<bf16, C>(op);
  const SumBlocks& sum = plan.sum;
  bf16* const a_panels = reinterpret_cast<bf16*>(scratch.tensor().data);
  std::byte* const workers = scratch.tensor().data + plan.a_bytes;

  const int64_t panels = plan.padded_rows / kernels.rows;
  pool.parallel_for(panels * sum.count, [&](int64_t task) {
    const int64_t block = task / panels, row = task % panels * kernels.rows;
    kernels.pack_a(a.at(row, sum.first(block)), a.ld, a.along_k, std::min(kernels.rows, plan.m - row), sum.size(block),
                   a_panels + plan.padded_rows * sum.first(block) + row * sum.stored(block));
  });
  pool.parallel_for(divide_up(plan.n, plan.cols), [&](int64_t task, int worker) {
    const int64_t col = task * plan.cols, cols = std::min(plan.cols, plan.n - col);
    std::byte* const own = workers + worker * own_bytes;
    for (int64_t block = 0; block < sum.count; ++block) {
      const int64_t length = sum.stored(block);
      bf16* const b_panels = reinterpret_cast<bf16*>(own);
      kernels.pack_b(b.at(col, sum.first(block)), b.ld, b.along_k, cols, sum.size(block), b_panels,
                     length * kernels.cols);
      kernels.block({.k = length,
                     .a = a_panels + plan.padded_rows * sum.first(block),
                     .b = b_panels,
                     .b_stride = length * kernels.cols,
                     .sums = reinterpret_cast<float*>(own + plan.b_bytes),
                     .col = col,
                     .rows = plan.m,
                     .cols = cols,
                     .first = block == 0,
                     .last = block + 1 == sum.count},
                    store);
    }
  });
}

}  // namespace

bool packs_strips(int64_t m, int64_t k) { return m <= kFewRows && k > 0 && m * k <= kFewElements; }

void strip_product(Exec& ex, const Gemm& op, const Bf16Table& table) {
  op.c.dtype == DType::bf16 ? run_strips(ex, op, table.bf16_out) : run_strips(ex, op, table.f32_out_kept);
}

}  // namespace trainer::ops
