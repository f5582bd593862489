#include "ops/embedding.h"

#include "ops/cpu/embedding_kernels.h"
#include "ops/operands.h"

namespace trainer::ops {
namespace {

constexpr int64_t kColumns = 256;     // of one task of a backward pass
constexpr int64_t kRowsPerTask = 16;  // of a table

const EmbeddingKernels& kernels(const Exec& ex) {
  return table_for(ex, plain::embedding_kernels, avx2::embedding_kernels, avx512::embedding_kernels);
}

void check_ids(const Tensor& ids, int64_t vocabulary) {
  const int32_t* id = ids.as<int32_t>();
  for (int64_t r = 0; r < ids.count(); ++r)
    TRAINER_CHECK(id[r] >= 0 && id[r] < vocabulary, "token {} of row {}, the table has {} rows", id[r], r, vocabulary);
}

/// Counting sort: order[start[id] … start[id + 1]) are the rows that hold `id`, ascending.
void sort_rows(const Tensor& ids, int64_t vocabulary, int32_t* start, int32_t* order) {
  const int32_t* id = ids.as<int32_t>();
  const int64_t n = ids.count();
  std::fill_n(start, vocabulary + 1, 0);
  for (int64_t r = 0; r < n; ++r) ++start[id[r] + 1];
  for (int64_t v = 0; v < vocabulary; ++v) start[v + 1] += start[v];
  for (int64_t r = 0; r < n; ++r) order[start[id[r]]++] = static_cast<int32_t>(r);
  for (int64_t v = vocabulary; v > 0; --v) start[v] = start[v - 1];  // the placing has moved each start to its end
  start[0] = 0;
}

/// fn(row, first column, columns) for every row of a table, in parallel.
template <typename F>
void for_table_rows(Exec& ex, const Tensor& table, F&& fn) {
  const int64_t cols = table.cols(), rows = table.rows(), chunks = divide_up(cols, kColumns);
  device::pool_of(ex.device).parallel_for(divide_up(rows, kRowsPerTask) * chunks, [&](int64_t task) {
    const int64_t first = task / chunks * kRowsPerTask, c = task % chunks * kColumns;
    for (int64_t r = first; r < std::min(rows, first + kRowsPerTask); ++r) fn(r, c, std::min(kColumns, cols - c));
  });
}

}  // namespace

void run(Exec& ex, const EmbeddingForward& op) {
  const size_t type = kernel_index(op.table.dtype, "embedding table");
  const int64_t n = op.ids.count(), cols = op.table.cols();
  expect_count(op.ids, n, DType::i32, "embedding ids");
  expect_rows(op.y, n, cols, op.table.dtype, "embedding y");
  if (op.positions) {
    expect_rows(op.positions, op.positions.rows(), cols, op.table.dtype, "embedding positions");
    TRAINER_CHECK(op.rows_per_sequence > 0 && op.first_position >= 0 &&
                      op.first_position + std::min(n, op.rows_per_sequence) <= op.positions.rows(),
                  "positions {}+{} of a table of {}", op.first_position, op.rows_per_sequence, op.positions.rows());
  }
  const double bytes = static_cast<double>(op.y.bytes());
  const OpTimer timer(ex.meter, OpKind::embedding, {static_cast<double>(op.y.count()), 2 * bytes});
  if (ex.device.dry()) return;
  check_ids(op.ids, op.table.rows());
  const auto kernel = kernels(ex).look_up[type];
  const int32_t* ids = op.ids.as<int32_t>();
  for_row_blocks(ex, n, rows_per_task(cols), [&](int64_t first, int64_t rows) {
    for (int64_t r = first; r < first + rows; ++r)
      kernel(row_at(op.table, ids[r]),
             op.positions ? row_at(op.positions, op.first_position + r % op.rows_per_sequence) : nullptr,
             row_at(op.y, r), cols);
  });
}

void run(Exec& ex, const EmbeddingBackward& op) {
  const size_t type = kernel_index(op.dy.dtype, "embedding dy");
  const int64_t n = op.ids.count(), cols = op.dy.cols(), vocabulary = op.dtable.rows();
  const DType sums = accumulator_of(op.dy.dtype);
  expect_count(op.ids, n, DType::i32, "embedding ids");
  expect_rows(op.dy, n, cols, op.dy.dtype, "embedding dy");
  expect_rows(op.dtable, vocabulary, cols, sums, "embedding dtable");
  if (op.dpositions) {
    expect_rows(op.dpositions, op.dpositions.rows(), cols, sums, "embedding dpositions");
    TRAINER_CHECK(op.rows_per_sequence > 0 && std::min(n, op.rows_per_sequence) <= op.dpositions.rows(),
                  "{} rows per sequence, {} positions", op.rows_per_sequence, op.dpositions.rows());
  }
  const Scratch start = ex.take("embedding.start", {vocabulary + 1}, DType::i32);
  const Scratch order = ex.take("embedding.order", {n}, DType::i32);
  const double written = op.accumulate_table ? 2.0 * static_cast<double>(n * cols * size_of(sums))
                                             : static_cast<double>(op.dtable.bytes());
  const OpTimer timer(ex.meter, OpKind::embedding,
                      {static_cast<double>(op.dy.count()), static_cast<double>(op.dy.bytes()) + written});
  if (ex.device.dry()) return;
  check_ids(op.ids, vocabulary);
  auto* starts = start.tensor().as<int32_t>();
  auto* rows = order.tensor().as<int32_t>();
  sort_rows(op.ids, vocabulary, starts, rows);
  const auto kernel = kernels(ex).gather_sum[type];
  for_table_rows(ex, op.dtable, [&](int64_t v, int64_t c, int64_t width) {
    kernel(element_at(op.dy, 0, c), op.dy.ld(), rows + starts[v], 0, 0, starts[v + 1] - starts[v],
           element_at(op.dtable, v, c), op.accumulate_table, width);
  });
  if (!op.dpositions) return;
  for_table_rows(ex, op.dpositions, [&](int64_t p, int64_t c, int64_t width) {
    const int64_t sequences = p < op.rows_per_sequence && p < n ? divide_up(n - p, op.rows_per_sequence) : 0;
    kernel(element_at(op.dy, 0, c), op.dy.ld(), nullptr, p, op.rows_per_sequence, sequences,
           element_at(op.dpositions, p, c), op.accumulate_positions, width);
  });
}

}  // namespace trainer::ops
