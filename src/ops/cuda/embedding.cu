#include "ops/embedding.h"

#include <bit>

#include "ops/cuda/map.cuh"
#include "ops/cuda/ops.h"
#include "ops/cuda/sort.cuh"

namespace trainer::ops::cuda {
namespace {

/// y = token + position, either of which may be missing. An id outside the vocabulary yields NaN, so that the step is
/// skipped (the CPU throws immediately).
template <typename T>
struct LookUpBody {
  const int32_t* ids;  // null: `table` is y itself, row by row
  Rows<const T> table, positions;
  Rows<T> y;
  int64_t first_id, table_rows, vocabulary;
  int64_t first_row, rows_per_sequence, first_position;

  template <int V>
  struct Values {
    float token[V], position[V];
  };
  template <int V>
  __device__ void load(Values<V>& v, const Piece& at) const {
#pragma unroll
    for (int i = 0; i < V; ++i) v.token[i] = v.position[i] = 0;
    const int64_t id = ids == nullptr ? at.r : ids[at.r], row = id - first_id;
    if (row >= 0 && row < table_rows) get(table.at(row, at.c), at.n, v.token);
    if (id < 0 || id >= vocabulary) {
#pragma unroll
      for (int i = 0; i < V; ++i) v.token[i] = std::bit_cast<float>(0x7fffffffu);
    }
    if (positions.data == nullptr) return;
    const int64_t place = first_row + at.r;
    get(positions.at(first_position + place - quotient(place, rows_per_sequence) * rows_per_sequence, at.c), at.n,
        v.position);
  }
  template <int V>
  __device__ void store(Values<V>& v, const Piece& at) const {
    if (positions.data != nullptr) {
#pragma unroll
      for (int i = 0; i < V; ++i) v.token[i] += v.position[i];
    }
    put(y.at(at.r, at.c), at.n, v.token);
  }
};

/// The rows of dy that belong to row v of a table: order[start[v] … start[v + 1]), or every stride-th row from
/// first(v).
struct ListedRows {
  const int32_t *start, *order;
  __device__ int64_t count(int64_t v) const { return start[v + 1] - start[v]; }
  __device__ int64_t row(int64_t v, int64_t k) const { return order[start[v] + k]; }
};
struct SpacedRows {
  int64_t first_row, stride, rows;
  __device__ int64_t first(int64_t v) const { return ((v - first_row) % stride + stride) % stride; }
  __device__ int64_t count(int64_t v) const {
    return v < stride && first(v) < rows ? divide_up(rows - first(v), stride) : 0;
  }
  __device__ int64_t row(int64_t v, int64_t k) const { return first(v) + k * stride; }
};

constexpr int kSumThreads = 128;

/// table[v] (+)= Σ dy[rows of v], in order. A thread sums V columns; the threads of a table row are adjacent.
template <typename T, int V, typename Source>
__global__ void __launch_bounds__(kSumThreads)
    row_sum_kernel(Rows<const T> dy, Source source, Rows<float> table, int64_t items, int64_t per_row, int64_t cols,
                   bool accumulate) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  if (item >= items) return;
  const Piece at = piece_at<V>(item, per_row, cols);
  const int64_t count = source.count(at.r);
  if (count == 0 && accumulate) return;
  constexpr int kAhead = 8;
  float sum[V] = {};
  if (accumulate) get(table.at(at.r, at.c), at.n, sum);
  int64_t k = 0;
  for (; k + kAhead <= count; k += kAhead) {
    float next[kAhead][V];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) get(dy.at(source.row(at.r, k + j), at.c), at.n, next[j]);
#pragma unroll
    for (int j = 0; j < kAhead; ++j)
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += next[j][i];
  }
  for (; k < count; ++k) {
    float next[V];
    get(dy.at(source.row(at.r, k), at.c), at.n, next);
#pragma unroll
    for (int i = 0; i < V; ++i) sum[i] += next[i];
  }
  put(table.at(at.r, at.c), at.n, sum);
}

template <typename T, int V, typename Source>
void sum_pieces(Exec& ex, const Tensor& dy, const Source& source, const Tensor& table, bool accumulate) {
  const int64_t per_row = divide_up(table.cols(), int64_t{V}), items = table.rows() * per_row;
  if (items == 0) return;
  device::cuda::launch(device::cuda::stream_of(ex.device),
                       {dim3(static_cast<unsigned>(divide_up(items, int64_t{kSumThreads}))), dim3(kSumThreads)},
                       row_sum_kernel<T, V, Source>, rows_in<T>(dy), source, rows_of<float>(table), items, per_row,
                       table.cols(), accumulate);
}
template <typename T, typename Source>
void sum_rows(Exec& ex, const Tensor& dy, const Source& source, const Tensor& table, bool accumulate) {
  constexpr int kPiece = 4;
  aligned_rows({dy}, dy.rows(), kPiece) && aligned_rows({table}, table.rows(), kPiece)
      ? sum_pieces<T, kPiece>(ex, dy, source, table, accumulate)
      : sum_pieces<T, 1>(ex, dy, source, table, accumulate);
}

int64_t vocabulary_of(const TableShard& shard, const Tensor& table) {
  return shard.vocabulary == 0 ? table.rows() : shard.vocabulary;
}

template <typename T>
void look_up(Exec& ex, const LookUpBody<T>& body, const Tensor& table, const Tensor& positions, const Tensor& y) {
  constexpr int kPiece = wide_of<T>();
  const int64_t rows = y.rows(), cols = y.cols();
  aligned_rows({y}, rows, kPiece) && aligned_rows({table, positions}, 2, kPiece)
      ? map_pieces<kPiece>(ex, body, rows, cols)
      : map_pieces<1>(ex, body, rows, cols);
}

}  // namespace

void run(Exec& ex, const EmbeddingForward& op) {
  for_compute_type(op.table.dtype, "embedding table", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    look_up<T>(
        ex,
        {op.ids.as<int32_t>(), rows_in<T>(op.table), rows_in<T>(op.positions), rows_of<T>(op.y), op.shard.first_id,
         op.table.rows(), vocabulary_of(op.shard, op.table), 0, op.rows_per_sequence, op.first_position},
        op.table, op.positions, op.y);
  });
}

void run(Exec& ex, const AddPositions& op) {
  for_compute_type(op.y.dtype, "positions y", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    look_up<T>(ex,
               {nullptr, rows_in<T>(op.y), rows_in<T>(op.positions), rows_of<T>(op.y), 0, op.y.rows(), op.y.rows(),
                op.first_row, op.rows_per_sequence, op.first_position},
               op.y, op.positions, op.y);
  });
}

void run(Exec& ex, const EmbeddingBackward& op) {
  for_compute_type(op.dy.dtype, "embedding dy", [&]<typename T>(T) {
    const SortedRows sorted = sort_rows(ex, op.ids, op.shard.first_id, op.dtable.rows());
    if (ex.device.dry()) return;
    sum_rows<T>(ex, op.dy, ListedRows{sorted.start.tensor().as<int32_t>(), sorted.order.tensor().as<int32_t>()},
                op.dtable, op.accumulate);
  });
}

void run(Exec& ex, const PositionsBackward& op) {
  for_compute_type(op.dy.dtype, "positions dy", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    sum_rows<T>(ex, op.dy, SpacedRows{op.first_row, op.rows_per_sequence, op.dy.rows()}, op.dpositions, op.accumulate);
  });
}

}  // namespace trainer::ops::cuda
