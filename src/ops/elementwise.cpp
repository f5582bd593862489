#include "ops/elementwise.h"

#include <cmath>
#include <cstring>

#include "ops/cpu/elementwise_kernels.h"
#include "ops/cuda/ops.h"
#include "ops/operands.h"
#include "ops/reduce.h"

namespace trainer::ops {
namespace {

const ElementwiseKernels& elementwise_kernels(const Exec& ex) {
  return TRAINER_KERNELS(ex.device.isa(), elementwise_kernels);
}

}  // namespace

uint32_t dropout_threshold(double p) {
  TRAINER_CHECK(p >= 0 && p < 1, "dropout probability {}, expected 0 <= p < 1", p);
  return static_cast<uint32_t>(std::min(std::nearbyint(p * 0x1p32), 0x1p32 - 1));
}

void run(Exec& ex, const DropoutAdd& op) {
  const size_t type = kernel_index(op.x.dtype, "dropout x");
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  if (op.residual) expect_rows(op.residual, rows, cols, op.x.dtype, "dropout residual");
  expect_rows(op.y, rows, cols, op.x.dtype, "dropout y");
  if (op.bias) expect_count(op.bias, cols, op.x.dtype, "dropout bias");
  const DropoutSite& site = op.site;
  TRAINER_CHECK(site.p == 0 || (site.first_row >= 0 && site.first_col >= 0 && site.first_col + cols <= site.width),
                "dropout: {} columns from column {} exceed a width of {}", cols, site.first_col, site.width);
  if (site.order) expect_count(site.order, rows, DType::i32, "dropout order");
  const uint32_t threshold = dropout_threshold(site.p);
  const OpTimer timer(ex.meter, OpKind::elementwise,
                      {30.0 * static_cast<double>(op.x.count()), bytes_of(op.x) * (op.residual ? 3 : 2)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = elementwise_kernels(ex).dropout[type];
  for_row_blocks(ex, rows, rows_per_task(cols), [&](int64_t first, int64_t n) {
    const auto width = static_cast<uint64_t>(site.width);
    const int64_t first_row = site.first_row + (site.order ? 0 : first);
    kernel({row_at(op.x, first), op.residual ? row_at(op.residual, first) : nullptr, op.bias ? op.bias.data : nullptr,
            row_at(op.y, first), op.x.ld(), op.residual.ld(), op.y.ld(), n, cols,
            static_cast<uint64_t>(first_row) * width + static_cast<uint64_t>(site.first_col), width,
            site.order ? site.order.as<int32_t>() + first : nullptr, site.key.k0, site.key.k1, site.step, threshold,
            1.0 / (1.0 - site.p)});
  });
}

void run(Exec& ex, const Scale& op) {
  const size_t type = kernel_index(op.x.dtype, "scale x");
  const OpTimer timer(ex.meter, OpKind::elementwise, {static_cast<double>(op.x.count()), bytes_of(op.x, 2)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = elementwise_kernels(ex).scale[type];
  for_tiles(ex, op.x.rows(), op.x.cols(), op.x.packed(), [&](int64_t r, int64_t n, int64_t c, int64_t width) {
    kernel(element_at(op.x, r, c), op.x.ld(), n, width, op.factor);
  });
}

void run(Exec& ex, const ColumnSum& op) {
  constexpr int64_t kColumns = 1024, kLeastRows = 128, kMostBlocks = 128;  // a task's kColumns sums stay in L1
  const size_t type = kernel_index(op.x.dtype, "column sum x");
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  const DType sums = accumulator_of(op.x.dtype);
  expect_count(op.sums, cols, sums, "column sums");
  const OpTimer timer(ex.meter, OpKind::column_sum, {static_cast<double>(op.x.count()), bytes_of(op.x)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  const int64_t block = std::max(kLeastRows, divide_up(rows, kMostBlocks)), blocks = divide_up(rows, block);
  const int64_t chunks = divide_up(cols, kColumns);
  const Scratch partials = ex.take("column_sum.partials", {blocks, cols}, sums);
  if (ex.device.dry()) return;
  const auto kernel = elementwise_kernels(ex).column_sum[type];
  device::pool_of(ex.device).parallel_for(blocks * chunks, [&](int64_t task) {
    const int64_t b = task / chunks, c = task % chunks * kColumns;
    kernel(element_at(op.x, b * block, c), op.x.ld(), std::min(block, rows - b * block), std::min(kColumns, cols - c),
           element_at(partials, b, c));
  });
  sum_partials(ex, partials, op.sums, op.accumulate);
}

void run(Exec& ex, const Cast& op) {
  const size_t from = kernel_index(op.x.dtype, "cast x"), to = kernel_index(op.y.dtype, "cast y");
  TRAINER_CHECK(op.x.count() == op.y.count() && op.x.packed() && op.y.packed(),
                "cast of {} to {}: expected packed tensors with equal counts", to_string(op.x), to_string(op.y));
  const OpTimer timer(ex.meter, OpKind::elementwise, {0, bytes_of(op.x) + bytes_of(op.y)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = elementwise_kernels(ex).cast[from][to];
  for_elements(ex, op.x.count(), [&](int64_t first, int64_t n) {
    kernel(op.x.data + first * size_of(op.x.dtype), op.y.data + first * size_of(op.y.dtype), n);
  });
}

void run(Exec& ex, const Copy& op) {
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  expect_rows(op.y, rows, cols, op.x.dtype, "copy y");
  const OpTimer timer(ex.meter, OpKind::elementwise, {0, 2 * bytes_of(op.x)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  for_tiles(ex, rows, cols, op.x.packed() && op.y.packed(), [&](int64_t r, int64_t n, int64_t c, int64_t width) {
    for (int64_t i = r; i < r + n; ++i)
      std::memcpy(element_at(op.y, i, c), element_at(op.x, i, c), static_cast<size_t>(width * size_of(op.x.dtype)));
  });
}

}  // namespace trainer::ops
