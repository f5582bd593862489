#include "ops/embedding.h"

#include <algorithm>
#include <bit>

#include "ops/cuda/map.cuh"
#include "ops/cuda/ops.h"

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
  const int32_t* position_ids;  // null: counted from first_position

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
    const int64_t position = position_ids != nullptr
                                 ? position_ids[at.r]
                                 : first_position + place - quotient(place, rows_per_sequence) * rows_per_sequence;
    get(positions.at(position, at.c), at.n, v.position);
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

// In text a few tokens have thousands of rows. So the rows of a token are cut into blocks, counted from its first row,
// whose sums are computed in parallel and then added in order, before the rows that are left. The result of a token
// depends only on its own rows. Tokens without a whole block are summed by one thread for some columns.
constexpr int64_t kSumBlock = 64;

/// start[v] = number of rows in `order` whose token is below first + v, v <= rows. Ids that are not tokens are at the
/// end of the order.
constexpr int kStartThreads = 256;
__global__ void __launch_bounds__(kStartThreads)
    start_kernel(const int32_t* ids, const int32_t* order, int64_t count, int64_t first, int64_t vocabulary,
                 int64_t rows, int32_t* start) {
  const int64_t v = static_cast<int64_t>(blockIdx.x) * kStartThreads + threadIdx.x;
  if (v > rows) return;
  const int64_t token = first + v < vocabulary ? first + v : vocabulary;
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (static_cast<uint32_t>(ids[order[middle]]) < token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  start[v] = static_cast<int32_t>(low);
}

/// The rows of dy that belong to row v of a table: order[start[v] … start[v + 1]), or every stride-th row from
/// first(v).
struct ListedRows {
  const int32_t *start, *order;
  __device__ int64_t count(int64_t v) const { return start[v + 1] - start[v]; }
  __device__ int64_t row(int64_t v, int64_t k) const { return order[start[v] + k]; }
  __device__ static bool in_blocks(int64_t count) { return count >= kSumBlock; }
};
struct SpacedRows {
  int64_t first_row, stride, rows;
  __device__ int64_t first(int64_t v) const { return ((v - first_row) % stride + stride) % stride; }
  __device__ int64_t count(int64_t v) const {
    return v < stride && first(v) < rows ? divide_up(rows - first(v), stride) : 0;
  }
  __device__ int64_t row(int64_t v, int64_t k) const { return first(v) + k * stride; }
  __device__ static bool in_blocks(int64_t) { return false; }
};

constexpr int kSumThreads = 128;
constexpr int64_t kSumPiece = 4;  // columns of a thread

/// sum += dy[row(k)], k from `first` to `last` − 1, in order.
template <typename T, int V, typename Row>
__device__ inline void add_rows(const Rows<const T>& dy, const Piece& at, int64_t first, int64_t last, const Row& row,
                                float (&sum)[V]) {
  constexpr int kAhead = 8;
  int64_t k = first;
  for (; k + kAhead <= last; k += kAhead) {
    float next[kAhead][V];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) get(dy.at(row(k + j), at.c), at.n, next[j]);
#pragma unroll
    for (int j = 0; j < kAhead; ++j)
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += next[j][i];
  }
  for (; k < last; ++k) {
    float next[V];
    get(dy.at(row(k), at.c), at.n, next);
#pragma unroll
    for (int i = 0; i < V; ++i) sum[i] += next[i];
  }
}

/// table[v] (+)= Σ dy[rows of v], in order, for rows v without whole blocks. A thread sums V columns; the threads of a
/// table row are adjacent.
template <typename T, int V, typename Source>
__global__ void __launch_bounds__(kSumThreads)
    row_sum_kernel(Rows<const T> dy, Source source, Rows<float> table, int64_t items, int64_t per_row, int64_t cols,
                   bool accumulate) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  if (item >= items) return;
  const Piece at = piece_at<V>(item, per_row, cols);
  const int64_t count = source.count(at.r);
  if ((count == 0 && accumulate) || source.in_blocks(count)) return;
  float sum[V] = {};
  if (accumulate) get(table.at(at.r, at.c), at.n, sum);
  add_rows(
      dy, at, 0, count, [&](int64_t k) { return source.row(at.r, k); }, sum);
  put(table.at(at.r, at.c), at.n, sum);
}

/// The blocks of the tokens of a table. Block j is that of the token at place kSumBlock·(j + 1) − 1 of the order, the
/// first one that begins at place kSumBlock·j or later. No other token has a whole block there.
struct TokenBlocks {
  ListedRows rows;
  const int32_t* ids;
  int64_t first_id, table_rows;
  __device__ int64_t token(int64_t j) const { return ids[rows.order[kSumBlock * (j + 1) - 1]] - first_id; }
  __device__ int64_t count(int64_t v) const { return v >= 0 && v < table_rows ? rows.count(v) / kSumBlock : 0; }
  __device__ int64_t first(int64_t v) const { return rows.start[v] / kSumBlock; }
};

/// sums[j] = Σ dy[rows of block j], if it is a whole block.
template <typename T, int V>
__global__ void __launch_bounds__(kSumThreads) block_sum_kernel(Rows<const T> dy, TokenBlocks blocks, Rows<float> sums,
                                                                int64_t items, int64_t per_row, int64_t cols) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  if (item >= items) return;
  const Piece at = piece_at<V>(item, per_row, cols);
  const int64_t v = blocks.token(at.r), count = blocks.count(v);
  if (count == 0) return;
  const int64_t block = at.r - blocks.first(v);
  if (block < 0 || block >= count) return;
  float sum[V] = {};
  add_rows(
      dy, at, block * kSumBlock, (block + 1) * kSumBlock, [&](int64_t k) { return blocks.rows.row(v, k); }, sum);
  put(sums.at(at.r, at.c), at.n, sum);
}

/// table[v] (+)= the sums of the blocks of v, then the rows that are left, for the tokens v whose first block is j.
template <typename T, int V>
__global__ void __launch_bounds__(kSumThreads)
    token_sum_kernel(Rows<const T> dy, TokenBlocks blocks, Rows<const float> sums, Rows<float> table, int64_t items,
                     int64_t per_row, int64_t cols, bool accumulate) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  if (item >= items) return;
  const Piece at = piece_at<V>(item, per_row, cols);
  const int64_t v = blocks.token(at.r), count = blocks.count(v);
  if (count == 0 || at.r != blocks.first(v)) return;
  float sum[V] = {};
  if (accumulate) get(table.at(v, at.c), at.n, sum);
  add_rows(
      sums, at, 0, count, [&](int64_t k) { return at.r + k; }, sum);
  add_rows(
      dy, at, count * kSumBlock, blocks.rows.count(v), [&](int64_t k) { return blocks.rows.row(v, k); }, sum);
  put(table.at(v, at.c), at.n, sum);
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
template <typename T, int V>
void sum_blocks(Exec& ex, const Tensor& dy, const TokenBlocks& blocks, const Tensor& sums, const Tensor& table,
                bool accumulate) {
  const int64_t per_row = divide_up(sums.cols(), int64_t{V}), items = sums.rows() * per_row;
  if (items == 0) return;
  const cudaStream_t stream = device::cuda::stream_of(ex.device);
  const device::cuda::LaunchConfig grid{dim3(static_cast<unsigned>(divide_up(items, int64_t{kSumThreads}))),
                                        dim3(kSumThreads)};
  device::cuda::launch(stream, grid, block_sum_kernel<T, V>, rows_in<T>(dy), blocks, rows_of<float>(sums), items,
                       per_row, sums.cols());
  device::cuda::launch(stream, grid, token_sum_kernel<T, V>, rows_in<T>(dy), blocks, rows_in<float>(sums),
                       rows_of<float>(table), items, per_row, sums.cols(), accumulate);
}
template <typename T, typename Source>
void sum_rows(Exec& ex, const Tensor& dy, const Source& source, const Tensor& table, bool accumulate) {
  aligned_rows({dy}, dy.rows(), kSumPiece) && aligned_rows({table}, table.rows(), kSumPiece)
      ? sum_pieces<T, kSumPiece>(ex, dy, source, table, accumulate)
      : sum_pieces<T, 1>(ex, dy, source, table, accumulate);
}

int64_t vocabulary_of(const TableShard& shard, const Tensor& table) {
  return shard.vocabulary == 0 ? table.rows() : shard.vocabulary;
}

const int32_t* given(const Tensor& position_ids) { return position_ids ? position_ids.as<int32_t>() : nullptr; }

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
    look_up<T>(ex,
               {op.ids.as<int32_t>(), rows_in<T>(op.table), rows_in<T>(op.positions), rows_of<T>(op.y),
                op.shard.first_id, op.table.rows(), vocabulary_of(op.shard, op.table), 0, op.rows_per_sequence,
                op.first_position, given(op.position_ids)},
               op.table, op.positions, op.y);
  });
}

void run(Exec& ex, const AddPositions& op) {
  for_compute_type(op.y.dtype, "positions y", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    look_up<T>(ex,
               {nullptr, rows_in<T>(op.y), rows_in<T>(op.positions), rows_of<T>(op.y), 0, op.y.rows(), op.y.rows(),
                op.first_row, op.rows_per_sequence, op.first_position, given(op.position_ids)},
               op.y, op.positions, op.y);
  });
}

void run(Exec& ex, const EmbeddingBackward& op) {
  for_compute_type(op.dy.dtype, "embedding dy", [&]<typename T>(T) {
    const int64_t n = op.ids.count(), blocks = n / kSumBlock, rows = op.dtable.rows(), cols = op.dtable.cols();
    const Scratch start = ex.take("embedding.start", {rows + 1}, DType::i32);
    const Scratch sums =
        ex.take("embedding.sums", {std::max<int64_t>(1, blocks), round_up(cols, kSumPiece)}, DType::f32);
    if (ex.device.dry()) return;
    const Tensor of_blocks = sums.tensor().row_range(0, blocks).col_range(0, cols);
    const ListedRows source{start.tensor().as<int32_t>(), op.order.as<int32_t>()};
    const TokenBlocks of_tokens{source, op.ids.as<int32_t>(), op.shard.first_id, rows};
    device::cuda::launch(
        device::cuda::stream_of(ex.device),
        {dim3(static_cast<unsigned>(divide_up(rows + 1, int64_t{kStartThreads}))), dim3(kStartThreads)}, start_kernel,
        op.ids.as<int32_t>(), source.order, n, op.shard.first_id, vocabulary_of(op.shard, op.dtable), rows,
        start.tensor().as<int32_t>());
    aligned_rows({op.dy}, op.dy.rows(), kSumPiece) && aligned_rows({op.dtable}, op.dtable.rows(), kSumPiece)
        ? sum_blocks<T, kSumPiece>(ex, op.dy, of_tokens, of_blocks, op.dtable, op.accumulate)
        : sum_blocks<T, 1>(ex, op.dy, of_tokens, of_blocks, op.dtable, op.accumulate);
    sum_rows<T>(ex, op.dy, source, op.dtable, op.accumulate);
  });
}

void run(Exec& ex, const PositionsBackward& op) {
  for_compute_type(op.dy.dtype, "positions dy", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    sum_rows<T>(ex, op.dy, SpacedRows{op.first_row, op.rows_per_sequence, op.dy.rows()}, op.dpositions, op.accumulate);
  });
}

}  // namespace trainer::ops::cuda
