#include "ops/cross_entropy.h"

#include <limits>
#include <type_traits>

#include "ops/cuda/ops.h"
#include "ops/cuda/reduce.cuh"

namespace trainer::ops::cuda {
namespace {

/// Two blocks fit on a multiprocessor, so that one reads while the other is between its passes, or writes.
constexpr int kThreads = 512, kBlocks = 2;

/// The logits, their gradient, and the parameters of the whole grid. Columns >= `vocab` are padding.
template <typename T>
struct LossRows {
  Rows<const float> logits;
  const int32_t* targets;
  const float* weights;  // null: all 1
  Rows<T> dlogits;       // null: no gradient
  int64_t rows, first, vocabulary;
  int padded, vocab;
  const double* scale;  // null: 1
  double z;             // z, cap, z_loss, margin: ops::LossTerms
  float cap;
  double *z_loss, *margin;        // null: not stored
  double *loss, *largest, *sums;  // largest [rows], sums [2, rows]: shards only
  int kept;                       // columns kept in shared memory between the two passes over a row

  __device__ float weight(int64_t r) const { return weights == nullptr ? 1.0f : weights[r]; }
  /// Returns the column of the target, or −1 if it is on a different rank.
  __device__ int column(int64_t r) const {
    const int64_t c = targets[r] - first;
    return c >= 0 && c < vocab ? static_cast<int>(c) : -1;
  }
  /// True if the target is not a token. The loss then becomes NaN, so that the step is skipped (the CPU throws
  /// immediately).
  __device__ bool lost(int64_t r) const { return targets[r] < 0 || targets[r] >= vocabulary; }
};

__device__ inline double not_a_number() { return std::bit_cast<double>(0x7fffffffffffffffull); }

/// Returns exp(logit − top), where top is the largest logit or −inf. Results below 2^-126 are 0.
__device__ inline float relative_exp(float logit, float top) { return fast_exp2((logit - top) * 1.44269504f); }

/// Largest logit so far, and Σ exp(logit − largest).
struct Online {
  float largest = -std::numeric_limits<float>::infinity(), sum = 0;
};

template <int K, int V>
__device__ inline void add(Online& row, const float (&x)[K][V]) {
  float top = row.largest;
#pragma unroll
  for (int k = 0; k < K; ++k)
#pragma unroll
    for (int i = 0; i < V; ++i) top = fmaxf(top, x[k][i]);
  if (top > row.largest) {
    row.sum *= relative_exp(row.largest, top);
    row.largest = top;
  }
  const float shift = top > -std::numeric_limits<float>::infinity() ? top : 0.0f;  // so that −inf adds 0, not NaN
#pragma unroll
  for (int k = 0; k < K; ++k)
#pragma unroll
    for (int i = 0; i < V; ++i) row.sum += relative_exp(x[k][i], shift);
}

/// Returns the number of columns before `end` in the vector of V columns that starts at c.
template <int V>
__device__ inline int columns_at(int c, int end) {
  return end - c < V ? end - c : V;
}

constexpr int kAhead = 4;  // pieces of a thread in flight

/// The sums of a row over the block; the threads' f32 sums are added in f64. sums_of() keeps the row's first columns.
struct RowSums {
  float largest;
  double sum;
};
template <int V>
__device__ inline RowSums sums_of(const float* logits, int vocab, float* keep, int kept) {
  __shared__ float tops[kMostWarps];
  __shared__ double sums[kMostWarps];
  const int step = static_cast<int>(blockDim.x) * V;
  Online row;
  int c = static_cast<int>(threadIdx.x) * V;
  for (; c + (kAhead - 1) * step + V <= vocab; c += kAhead * step) {
    float x[kAhead][V];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) get(logits + c + k * step, V, x[k]);
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      if (c + k * step < kept) put(keep + c + k * step, V, x[k]);
    add(row, x);
  }
  for (; c < vocab; c += step) {
    const int n = columns_at<V>(c, vocab);
    float x[1][V];
    get(logits + c, n, x[0]);
    if (c < kept) put(keep + c, n, x[0]);
#pragma unroll
    for (int i = 1; i < V; ++i)
      if (i >= n) x[0][i] = -std::numeric_limits<float>::infinity();
    add(row, x);
  }
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const float largest = block_max(row.largest, tops, warps);
  // The sum of a thread without columns, or with only −inf, is 0 (or NaN, which stays NaN).
  const double share = row.largest == largest ? 1.0 : static_cast<double>(expf(row.largest - largest));
  return {largest, block_sum(static_cast<double>(row.sum) * share, sums, warps)};
}

/// Stores weight·z·lse², the row's z term, and its margin.
template <typename T>
__device__ inline void store_terms(const LossRows<T>& op, int64_t r, float weight, double lse, double margin) {
  if (op.z_loss != nullptr) op.z_loss[r] = weight == 0 ? 0.0 : static_cast<double>(weight) * op.z * lse * lse;
  if (op.margin != nullptr) op.margin[r] = weight == 0 ? 0.0 : margin;
}

/// Computes a row's gradient, factor·((1 + 2·z·lse)·softmax − onehot), times the slope of the soft cap. target < 0: the
/// target is on a different rank.
struct RowGradient {
  float largest, scale, whole, steep;
  int vocab, target;
  template <typename T>
  __device__ RowGradient(const LossRows<T>& op, const RowSums& row, float weight, int at)
      : largest(row.largest), steep(op.cap > 0 ? 1 / op.cap : 0.0f), vocab(op.vocab), target(at) {
    const double factor = static_cast<double>(weight) * (op.scale == nullptr ? 1.0 : *op.scale);
    const double grown =
        op.z == 0 ? factor : factor * (1 + 2 * op.z * (static_cast<double>(row.largest) + log(row.sum)));
    scale = static_cast<float>(grown / row.sum);
    whole = static_cast<float>(factor);
  }
  /// Replaces the logits of columns c … c + V − 1 with their gradient.
  template <int V>
  __device__ void apply(int c, float (&x)[V]) const {
    float value[V];
#pragma unroll
    for (int i = 0; i < V; ++i) value[i] = relative_exp(x[i], largest) * scale;
    if (c <= target && target < c + V) {
#pragma unroll
      for (int i = 0; i < V; ++i) value[i] -= c + i == target ? whole : 0.0f;
    }
    if (steep > 0) {
#pragma unroll
      for (int i = 0; i < V; ++i) value[i] *= 1 - x[i] * steep * (x[i] * steep);
    }
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] = value[i];
  }
};

/// Writes columns first … end − 1 of a gradient, 0 in the padding. `from`: the logits of columns first ….
template <int V, typename T>
__device__ inline void write_gradient(const RowGradient& row, const float* from, T* dlogits, int first, int end) {
  const int step = static_cast<int>(blockDim.x) * V, vocab = row.vocab < end ? row.vocab : end;
  int c = first + static_cast<int>(threadIdx.x) * V;
  for (; c + (kAhead - 1) * step + V <= vocab; c += kAhead * step) {
    float x[kAhead][V];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) get(from + (c + k * step - first), V, x[k]);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      row.apply(c + k * step, x[k]);
      put(dlogits + c + k * step, V, x[k]);
    }
  }
  for (; c < end; c += step) {
    const int n = columns_at<V>(c, vocab);
    float x[V] = {};
    if (n > 0) get(from + (c - first), n, x);
    row.apply(c, x);
#pragma unroll
    for (int i = 0; i < V; ++i)
      if (i >= n) x[i] = 0;
    put(dlogits + c, columns_at<V>(c, end), x);
  }
}

template <int V, typename T>
__device__ inline void write_zeros(T* dlogits, int padded) {
  const float zeros[V] = {};
  for (int c = static_cast<int>(threadIdx.x) * V; c < padded; c += static_cast<int>(blockDim.x) * V)
    put(dlogits + c, columns_at<V>(c, padded), zeros);
}

/// A block computes the sums, the loss and the gradient of one row.
template <typename T, int V>
__global__ void __launch_bounds__(kThreads, kBlocks) cross_entropy_kernel(LossRows<T> op) {
  const int64_t r = blockIdx.x;
  const float weight = op.weight(r);
  if (weight == 0) {
    if (threadIdx.x == 0) {
      op.loss[r] = 0;
      store_terms(op, r, weight, 0, 0);
    }
    if (op.dlogits.data != nullptr) write_zeros<V>(op.dlogits.at(r, 0), op.padded);
    return;
  }
  const float* logits = op.logits.at(r, 0);
  const int target = op.column(r);
  const float at_target = target < 0 ? 0.0f : logits[target];  // before a gradient in place overwrites it
  float* const keep = dynamic_shared<float>();
  const RowSums row = sums_of<V>(logits, op.vocab, keep, op.kept);
  if (threadIdx.x == 0) {
    op.loss[r] = op.lost(r) ? not_a_number()
                            : static_cast<double>(weight) *
                                  (log(row.sum) + (static_cast<double>(row.largest) - static_cast<double>(at_target)));
    store_terms(op, r, weight, static_cast<double>(row.largest) + log(row.sum),
                static_cast<double>(at_target) - static_cast<double>(row.largest));
  }
  if (op.dlogits.data == nullptr) return;
  const RowGradient gradient(op, row, weight, target);
  // Columns that are not kept were read last, so they are read again first, while they are still in L2.
  write_gradient<V>(gradient, logits + op.kept, op.dlogits.at(r, 0), op.kept, op.padded);
  write_gradient<V>(gradient, keep, op.dlogits.at(r, 0), 0, op.kept);
}

template <int V>
__global__ void __launch_bounds__(kThreads, kBlocks) shard_sums_kernel(LossRows<float> op) {
  const int64_t r = blockIdx.x;
  const RowSums row = sums_of<V>(op.logits.at(r, 0), op.vocab, nullptr, 0);
  if (threadIdx.x != 0) return;
  op.largest[r] = static_cast<double>(row.largest);
  op.sums[r] = row.sum;
}

__global__ void __launch_bounds__(kThreads, kBlocks)
    shard_rescale_kernel(LossRows<float> op, const double* largest_here) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (r >= op.rows) return;
  const double largest = op.largest[r];
  if (op.vocab > 0 && largest_here[r] != largest) op.sums[r] *= exp(largest_here[r] - largest);
  const int target = op.column(r);
  op.sums[op.rows + r] = target < 0 ? 0.0 : static_cast<double>(*op.logits.at(r, target)) - largest;
}

template <typename T, int V>
__global__ void __launch_bounds__(kThreads, kBlocks) shard_loss_kernel(LossRows<T> op) {
  const int64_t r = blockIdx.x;
  const float weight = op.weight(r);
  const double sum = op.sums[r];
  if (threadIdx.x == 0) {
    op.loss[r] = weight == 0  ? 0.0
                 : op.lost(r) ? not_a_number()
                              : static_cast<double>(weight) * (log(sum) - op.sums[op.rows + r]);
    store_terms(op, r, weight, op.largest[r] + log(sum), op.sums[op.rows + r]);
  }
  if (op.dlogits.data == nullptr) return;
  if (weight == 0) {
    write_zeros<V>(op.dlogits.at(r, 0), op.padded);
    return;
  }
  const RowGradient gradient(op, {static_cast<float>(op.largest[r]), sum}, weight, op.column(r));
  write_gradient<V>(gradient, op.logits.at(r, 0), op.dlogits.at(r, 0), 0, op.padded);
}

/// Returns the block size: whole warps, but no more than a row of `pieces` can use.
dim3 threads_for(int64_t pieces) {
  return dim3(static_cast<unsigned>(std::clamp<int64_t>(round_up(pieces, kWarp), kWarp, kThreads)));
}

/// Calls launch(integral_constant<V>) with the widest piece that the operands allow. The width is the same for all
/// types of the gradient, so that the loss does not depend on that type.
template <typename F>
void with_piece(const Tensor& logits, const Tensor& dlogits, F&& launch) {
  constexpr int kPiece = 4;
  if (aligned_rows({logits, dlogits}, logits.rows(), kPiece)) {
    launch(std::integral_constant<int, kPiece>{});
  } else {
    launch(std::integral_constant<int, 1>{});
  }
}

template <typename T>
LossRows<T> rows_for(const Tensor& logits, const Tensor& targets, const Tensor& weights, const Tensor& dlogits,
                     int64_t vocab, const Tensor& scale) {
  TRAINER_CHECK(logits.cols() < INT32_MAX / 16, "cross entropy over {} columns: CUDA kernels support fewer than {}",
                logits.cols(), INT32_MAX / 16);
  LossRows<T> rows{};
  rows.logits = rows_in<float>(logits);
  rows.targets = targets.as<int32_t>();
  rows.weights = weights ? weights.as<float>() : nullptr;
  rows.dlogits = rows_of<T>(dlogits);
  rows.rows = logits.rows();
  rows.padded = static_cast<int>(logits.cols());
  rows.vocab = static_cast<int>(vocab);
  rows.vocabulary = vocab;
  rows.scale = scale ? scale.as<double>() : nullptr;
  return rows;
}

template <typename T>
void set_terms(LossRows<T>& rows, const LossTerms& terms) {
  rows.z = terms.z;
  rows.cap = static_cast<float>(terms.cap);
  rows.z_loss = terms.z_loss ? terms.z_loss.as<double>() : nullptr;
  rows.margin = terms.margin ? terms.margin.as<double>() : nullptr;
}

device::cuda::LaunchConfig row_grid(int64_t rows, int64_t pieces) {
  return {dim3(static_cast<unsigned>(rows)), threads_for(pieces)};
}

/// Returns how many columns each of kBlocks resident blocks can keep of its row, a multiple of every piece.
int kept_columns(const device::cuda::Facts& gpu, int64_t vocab) {
  constexpr int64_t kReserved = 1024, kStatic = 1024;  // bytes per block: for the driver, and for the sums
  const int64_t bytes = (gpu.shared_per_block + kReserved) / kBlocks - kReserved - kStatic;
  return static_cast<int>(std::clamp<int64_t>(bytes / static_cast<int64_t>(sizeof(float)), 0, vocab) / 4 * 4);
}

}  // namespace

void run(Exec& ex, const CrossEntropy& op) {
  for_compute_type(op.dlogits ? op.dlogits.dtype : op.logits.dtype, "cross entropy dlogits", [&]<typename T>(T) {
    if (ex.device.dry() || op.logits.rows() == 0) return;
    LossRows<T> rows = rows_for<T>(op.logits, op.targets, op.weights, op.dlogits, op.vocab, op.scale);
    rows.loss = op.loss.as<double>();
    set_terms(rows, op.terms);
    if (op.dlogits) rows.kept = kept_columns(ex.device.gpu(), op.vocab);
    with_piece(op.logits, op.dlogits, [&](auto piece) {
      device::cuda::LaunchConfig grid = row_grid(rows.rows, divide_up(op.vocab, int64_t{piece}));
      grid.shared_bytes = static_cast<size_t>(rows.kept) * sizeof(float);
      device::cuda::launch(device::cuda::stream_of(ex.device), grid, cross_entropy_kernel<T, piece>, rows);
    });
  });
}

void run(Exec& ex, const ShardSums& op) {
  for_compute_type(op.shard.logits.dtype, "logits", [&]<typename T>(T) {
    const Tensor& logits = op.shard.logits;
    if (ex.device.dry() || logits.rows() == 0) return;
    LossRows<float> rows = rows_for<float>(logits, op.shard.targets, {}, {}, op.shard.vocab, {});
    rows.largest = op.largest.as<double>();
    rows.sums = op.sums.as<double>();
    with_piece(logits, {}, [&](auto piece) {
      device::cuda::launch(device::cuda::stream_of(ex.device),
                           row_grid(rows.rows, divide_up(op.shard.vocab, int64_t{piece})), shard_sums_kernel<piece>,
                           rows);
    });
  });
}

void run(Exec& ex, const ShardRescale& op) {
  const CrossEntropyShard& shard = op.shard;
  if (ex.device.dry() || shard.logits.rows() == 0) return;
  LossRows<float> rows = rows_for<float>(shard.logits, shard.targets, {}, {}, shard.vocab, {});
  rows.first = shard.first;
  rows.largest = op.largest.as<double>();
  rows.sums = op.sums.as<double>();
  device::cuda::launch(device::cuda::stream_of(ex.device),
                       {dim3(static_cast<unsigned>(divide_up(rows.rows, int64_t{kThreads}))), dim3(kThreads)},
                       shard_rescale_kernel, rows, op.largest_here.as<double>());
}

void run(Exec& ex, const ShardLoss& op) {
  const CrossEntropyShard& shard = op.shard;
  for_compute_type(op.dlogits ? op.dlogits.dtype : shard.logits.dtype, "dlogits", [&]<typename T>(T) {
    if (ex.device.dry() || shard.logits.rows() == 0) return;
    LossRows<T> rows = rows_for<T>(shard.logits, shard.targets, op.weights, op.dlogits, shard.vocab, op.scale);
    rows.first = shard.first;
    rows.vocabulary = op.vocabulary;
    rows.largest = op.largest.as<double>();
    rows.sums = op.sums.as<double>();
    rows.loss = op.loss.as<double>();
    set_terms(rows, op.terms);
    with_piece(shard.logits, op.dlogits, [&](auto piece) {
      const int64_t pieces = op.dlogits ? divide_up(rows.padded, int64_t{piece}) : 1;
      device::cuda::launch(device::cuda::stream_of(ex.device), row_grid(rows.rows, pieces), shard_loss_kernel<T, piece>,
                           rows);
    });
  });
}

}  // namespace trainer::ops::cuda
