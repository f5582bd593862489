#include "ops/embedding.h"

#include <algorithm>
#include <numeric>

#include "ops/cpu/embedding_kernels.h"
#include "ops/cuda/ops.h"
#include "ops/operands.h"

namespace trainer::ops {
namespace {

constexpr int64_t kColumns = 256;     // columns per task of a backward pass
constexpr int64_t kRowsPerTask = 16;  // rows of a table per task

const EmbeddingKernels& embedding_kernels(const Exec& ex) {
  return TRAINER_KERNELS(ex.device.isa(), embedding_kernels);
}

/// Returns the shard with its default filled in.
TableShard shard_of(const TableShard& shard, const Tensor& table) {
  return {shard.first_id, shard.vocabulary == 0 ? table.rows() : shard.vocabulary};
}
void check_ids(const Tensor& ids, int64_t vocabulary) {
  const int32_t* id = ids.as<int32_t>();
  for (int64_t r = 0; r < ids.count(); ++r)
    TRAINER_CHECK(id[r] >= 0 && id[r] < vocabulary, "token {} in row {} is outside the vocabulary of {}", id[r], r,
                  vocabulary);
}
/// Returns the position of a row: of one of position_ids, or counted from `first`.
int64_t position_of(const Tensor& position_ids, int64_t row, int64_t first, int64_t place, int64_t length) {
  return position_ids ? position_ids.as<int32_t>()[row] : first + place % length;
}

/// Calls fn(row, first column, columns) for every row of a table, in parallel.
template <typename F>
void for_table_rows(Exec& ex, const Tensor& table, F&& fn) {
  const int64_t cols = table.cols(), rows = table.rows(), chunks = divide_up(cols, kColumns);
  device::pool_of(ex.device).parallel_for(divide_up(rows, kRowsPerTask) * chunks, [&](int64_t task) {
    const int64_t first = task / chunks * kRowsPerTask, c = task % chunks * kColumns;
    for (int64_t r = first; r < std::min(rows, first + kRowsPerTask); ++r) fn(r, c, std::min(kColumns, cols - c));
  });
}

}  // namespace

void RowsByToken::sort(std::span<const int32_t> ids, int64_t vocabulary) {
  TRAINER_CHECK(ids.size() < INT32_MAX, "sorting uses 32-bit indices: {} tokens are too many", ids.size());
  const auto bucket = [&](int32_t id) {
    return std::min(static_cast<size_t>(static_cast<uint32_t>(id)), static_cast<size_t>(vocabulary));
  };
  rows.resize(ids.size());
  next_.assign(static_cast<size_t>(vocabulary) + 2, 0);
  for (const int32_t id : ids) ++next_[bucket(id) + 1];
  std::partial_sum(next_.begin(), next_.end(), next_.begin());
  for (size_t r = 0; r < ids.size(); ++r) rows[static_cast<size_t>(next_[bucket(ids[r])]++)] = static_cast<int32_t>(r);
}

void run(Exec& ex, const EmbeddingForward& op) {
  const size_t type = kernel_index(op.table.dtype, "embedding table");
  const int64_t n = op.ids.count(), cols = op.table.cols();
  expect_count(op.ids, n, DType::i32, "embedding ids");
  expect_rows(op.y, n, cols, op.table.dtype, "embedding y");
  if (op.positions) {
    expect_rows(op.positions, op.positions.rows(), cols, op.table.dtype, "embedding positions");
    if (op.position_ids)
      expect_places(ex, op.position_ids, n, op.positions.rows(), "embedding position_ids");
    else
      TRAINER_CHECK(op.rows_per_sequence > 0 && op.first_position >= 0 &&
                        op.first_position + std::min(n, op.rows_per_sequence) <= op.positions.rows(),
                    "positions {} + {} exceed a table of {}", op.first_position, op.rows_per_sequence,
                    op.positions.rows());
  }
  const double bytes = static_cast<double>(op.y.bytes());
  const OpTimer timer(ex.meter, OpKind::embedding, {static_cast<double>(op.y.count()), 2 * bytes});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const TableShard shard = shard_of(op.shard, op.table);
  check_ids(op.ids, shard.vocabulary);
  const auto kernel = embedding_kernels(ex).look_up[type];
  const int32_t* ids = op.ids.as<int32_t>();
  for_row_blocks(ex, n, rows_per_task(cols), [&](int64_t first, int64_t rows) {
    for (int64_t r = first; r < first + rows; ++r) {
      const int64_t row = ids[r] - shard.first_id;
      kernel(row >= 0 && row < op.table.rows() ? row_at(op.table, row) : nullptr,
             op.positions
                 ? row_at(op.positions, position_of(op.position_ids, r, op.first_position, r, op.rows_per_sequence))
                 : nullptr,
             row_at(op.y, r), cols);
    }
  });
}

void run(Exec& ex, const AddPositions& op) {
  const size_t type = kernel_index(op.y.dtype, "positions y");
  const int64_t n = op.y.rows(), cols = op.y.cols();
  expect_rows(op.positions, op.positions.rows(), cols, op.y.dtype, "positions");
  if (op.position_ids)
    expect_places(ex, op.position_ids, n, op.positions.rows(), "position_ids");
  else
    TRAINER_CHECK(op.rows_per_sequence > 0 && op.first_position + op.rows_per_sequence <= op.positions.rows(),
                  "positions {} + {} exceed a table of {}", op.first_position, op.rows_per_sequence,
                  op.positions.rows());
  const OpTimer timer(ex.meter, OpKind::embedding, {static_cast<double>(op.y.count()), 3 * bytes_of(op.y)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = embedding_kernels(ex).look_up[type];
  for_row_blocks(ex, n, rows_per_task(cols), [&](int64_t first, int64_t rows) {
    for (int64_t r = first; r < first + rows; ++r)
      kernel(row_at(op.y, r),
             row_at(op.positions,
                    position_of(op.position_ids, r, op.first_position, op.first_row + r, op.rows_per_sequence)),
             row_at(op.y, r), cols);
  });
}

void run(Exec& ex, const EmbeddingBackward& op) {
  const size_t type = kernel_index(op.dy.dtype, "embedding dy");
  const int64_t n = op.ids.count(), cols = op.dy.cols(), rows = op.dtable.rows();
  const DType sums = accumulator_of(op.dy.dtype);
  expect_count(op.ids, n, DType::i32, "embedding ids");
  expect_count(op.order, n, DType::i32, "embedding order");
  expect_rows(op.dy, n, cols, op.dy.dtype, "embedding dy");
  expect_rows(op.dtable, rows, cols, sums, "embedding dtable");
  const double written = op.accumulate ? 2.0 * static_cast<double>(n * cols * size_of(sums)) : bytes_of(op.dtable);
  const OpTimer timer(ex.meter, OpKind::embedding, {static_cast<double>(op.dy.count()), bytes_of(op.dy) + written});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  const Scratch start = ex.take("embedding.start", {rows + 1}, DType::i32);
  if (ex.device.dry()) return;
  const TableShard shard = shard_of(op.shard, op.dtable);
  check_ids(op.ids, shard.vocabulary);
  auto* starts = start.tensor().as<int32_t>();  // the place in the order at which the rows of each token begin
  const int32_t *ids = op.ids.as<int32_t>(), *order = op.order.as<int32_t>();
  int32_t place = 0;
  for (int64_t v = 0; v <= rows; ++v) {
    while (place < n && ids[order[place]] < shard.first_id + v) ++place;
    starts[v] = place;
  }
  const auto kernel = embedding_kernels(ex).gather_sum[type];
  for_table_rows(ex, op.dtable, [&](int64_t v, int64_t c, int64_t width) {
    kernel(element_at(op.dy, 0, c), op.dy.ld(), order + starts[v], 0, 0, starts[v + 1] - starts[v],
           element_at(op.dtable, v, c), op.accumulate, width);
  });
}

void run(Exec& ex, const PositionsBackward& op) {
  const size_t type = kernel_index(op.dy.dtype, "positions dy");
  const int64_t n = op.dy.rows(), cols = op.dy.cols(), length = op.rows_per_sequence;
  expect_rows(op.dpositions, op.dpositions.rows(), cols, accumulator_of(op.dy.dtype), "embedding dpositions");
  TRAINER_CHECK(length > 0 && op.first_row >= 0 && std::min(op.first_row + n, length) <= op.dpositions.rows(),
                "{} rows per sequence exceed {} positions", length, op.dpositions.rows());
  const OpTimer timer(ex.meter, OpKind::embedding,
                      {static_cast<double>(op.dy.count()), bytes_of(op.dy) + bytes_of(op.dpositions)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = embedding_kernels(ex).gather_sum[type];
  for_table_rows(ex, op.dpositions, [&](int64_t p, int64_t c, int64_t width) {
    const int64_t first = ((p - op.first_row) % length + length) % length;
    const int64_t rows = p < length && first < n ? divide_up(n - first, length) : 0;
    kernel(element_at(op.dy, 0, c), op.dy.ld(), nullptr, first, length, rows, element_at(op.dpositions, p, c),
           op.accumulate, width);
  });
}

}  // namespace trainer::ops
