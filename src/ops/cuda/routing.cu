#include "ops/routing.h"

#include <algorithm>

#include "ops/cuda/map.cuh"
#include "ops/cuda/ops.h"
#include "ops/cuda/reduce.cuh"

namespace trainer::ops::cuda {
namespace {

constexpr int kRouteWarps = 8, kRouteThreads = kRouteWarps * kWarp;  // a warp computes a row
static_assert(kMostChoices <= kWarp && kMostExperts <= kWarp * kWarp);

__device__ inline float lowest() { return -std::bit_cast<float>(0x7f800000u); }

struct RouteRow {
  const float* logits;
  int32_t* choices;
  float *weights, *lse;
  int64_t rows, first_row;
  const int32_t* order;
  int experts, per_row;
  Route::From from;
  bool normalize;
};

/// Returns in lane j the expert with the j-th largest logit. A lane has every 32nd expert, and a bit for each of them
/// that was chosen.
__device__ inline int choose(const float* logits, int experts, int per_row) {
  uint32_t taken = 0;
  int chosen = 0;
  for (int j = 0; j < per_row; ++j) {
    float best = lowest();
    int expert = INT32_MAX;
    for (int e = lane_id(), i = 0; e < experts; e += kWarp, ++i) {
      if ((taken >> i & 1u) != 0) continue;
      const float x = logits[e] == logits[e] ? logits[e] : lowest();
      if (expert == INT32_MAX || x > best) best = x, expert = e;
    }
    for (int bits = kWarp / 2; bits > 0; bits /= 2) {
      const float other = shuffle_xor(best, bits);
      const int theirs = shuffle_xor(expert, bits);
      if (theirs != INT32_MAX && (expert == INT32_MAX || other > best || (other == best && theirs < expert)))
        best = other, expert = theirs;
    }
    if (expert % kWarp == lane_id()) taken |= 1u << expert / kWarp;
    if (lane_id() == j) chosen = expert;
  }
  return chosen;
}

__global__ void __launch_bounds__(kRouteThreads) route_kernel(RouteRow op) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kRouteWarps + threadIdx.x / kWarp;
  if (r >= op.rows) return;
  const float* const logits = op.logits + r * op.experts;
  const int lane = lane_id();
  const bool used = lane < op.per_row;
  int32_t* const choice = op.choices + r * op.per_row + lane;
  int chosen = 0;
  if (op.from == Route::From::logits) {
    chosen = choose(logits, op.experts, op.per_row);
  } else if (used) {
    const int64_t row = op.order != nullptr ? op.order[r] : op.first_row + r;
    chosen = op.from == Route::From::given ? *choice : static_cast<int>((row * op.per_row + lane) % op.experts);
  }
  if (used) *choice = chosen;

  float top = lowest(), sum = 0;
  for (int e = lane; e < op.experts; e += kWarp) top = logits[e] > top ? logits[e] : top;
  top = warp_max(top);
  for (int e = lane; e < op.experts; e += kWarp) sum += expf(logits[e] - top);
  const float lse = top + logf(warp_sum(sum)), logit = used ? logits[chosen] : lowest();
  if (lane == 0) op.lse[r] = lse;
  const float shift = op.normalize ? warp_max(logit) : lse;
  float weight = used ? expf(logit - shift) : 0;
  if (op.normalize) weight /= warp_sum(weight);
  if (used) op.weights[r * op.per_row + lane] = weight;
}

/// counts[line, e] for line = blockIdx.y and e = blockIdx.x, from choices [line·per_line, (line + 1)·per_line) of the
/// micro-batch. This rank has `n` of them, from `first` on; if `order` is given, choice i counts as one of those of row
/// order[i / per_row].
__global__ void __launch_bounds__(kRouteThreads)
    count_kernel(const int32_t* choices, const int32_t* order, int64_t first, int64_t n, int64_t per_line, int per_row,
                 int32_t* counts) {
  __shared__ int shared[kRouteWarps];
  const int expert = static_cast<int>(blockIdx.x);
  int64_t begin = blockIdx.y * per_line - first, end = begin + per_line < n ? begin + per_line : n;
  if (order != nullptr) begin = 0, end = n;
  int count = 0;
  for (int64_t i = (begin < 0 ? 0 : begin) + threadIdx.x; i < end; i += kRouteThreads) {
    const bool counted = order == nullptr || quotient(order[i / per_row] * int64_t{per_row}, per_line) == blockIdx.y;
    count += counted && choices[i] == expert;
  }
  count = block_sum(count, shared, kRouteWarps);
  if (threadIdx.x == 0) counts[blockIdx.y * gridDim.x + blockIdx.x] = count;
}

// Choices are sorted in blocks of kSortItems: how often each expert occurs in each block, then where the expert's
// choices of each block begin, and then their places. A thread follows the choices of an expert through a block.
constexpr int kSortItems = 1024, kSortThreads = 256;

struct SortItems {
  const int32_t* choices;
  int64_t count;
  int experts, blocks;
  int32_t *starts, *order, *place;  // starts [blocks, experts]
};

template <bool kPlaces>
__global__ void __launch_bounds__(kSortThreads) sort_kernel(SortItems op) {
  __shared__ int32_t items[kSortItems];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kSortItems;
  const int n = static_cast<int>(op.count - first < kSortItems ? op.count - first : kSortItems);
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kSortThreads) items[i] = op.choices[first + i];
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < op.experts; e += kSortThreads) {
    int32_t* const start = op.starts + static_cast<int64_t>(blockIdx.x) * op.experts + e;
    int32_t next = kPlaces ? *start : 0;
    for (int i = 0; i < n; ++i) {
      if (items[i] != e) continue;
      if (kPlaces) {
        op.place[first + i] = next;
        op.order[next] = static_cast<int32_t>(first + i);
      }
      ++next;
    }
    if (!kPlaces) *start = next;
  }
}

/// starts: from counts to the exclusive sums over (expert, block). A single block, with a thread for each expert.
__global__ void __launch_bounds__(kMostExperts) starts_kernel(SortItems op) {
  __shared__ int32_t totals[kMostExperts];
  const int e = static_cast<int>(threadIdx.x);
  int32_t total = 0;
  for (int b = 0; b < op.blocks && e < op.experts; ++b) total += op.starts[static_cast<int64_t>(b) * op.experts + e];
  totals[e] = total;
  __syncthreads();
  int32_t next = 0;
  for (int i = 0; i < e; ++i) next += totals[i];
  for (int b = 0; b < op.blocks && e < op.experts; ++b) {
    int32_t& start = op.starts[static_cast<int64_t>(b) * op.experts + e];
    const int32_t count = start;
    start = next;
    next += count;
  }
}

/// Rows in units of one access.
template <typename Unit>
struct GatherBody {
  const Unit* x;
  int64_t ldx;
  const int32_t* index;
  Unit* y;
  int64_t ldy, per_row;

  template <int V>
  struct Values {
    Unit unit;
  };
  template <int V>
  __device__ void load(Values<V>& v, const Piece& at) const {
    const int64_t row = index[at.r];
    v.unit = row < 0 ? Unit{} : x[quotient(row, per_row) * ldx + at.c];
  }
  template <int V>
  __device__ void store(const Values<V>& v, const Piece& at) const {
    y[at.r * ldy + at.c] = v.unit;
  }
};

template <typename Unit>
bool gather_in(Exec& ex, const GatherRows& op) {
  constexpr int64_t kUnit = sizeof(Unit);
  const int64_t size = size_of(op.x.dtype), bytes = op.y.cols() * size, from = op.x.ld() * size, to = op.y.ld() * size;
  if (bytes % kUnit != 0 || from % kUnit != 0 || to % kUnit != 0 ||
      (reinterpret_cast<uintptr_t>(op.x.data) | reinterpret_cast<uintptr_t>(op.y.data)) % kUnit != 0)
    return false;
  map_pieces<1>(ex,
                GatherBody<Unit>{reinterpret_cast<const Unit*>(op.x.data), from / kUnit, op.index.as<int32_t>(),
                                 reinterpret_cast<Unit*>(op.y.data), to / kUnit, op.per_row},
                op.y.rows(), bytes / kUnit);
  return true;
}

/// Y: the type of y and the residual.
template <typename T, typename Y>
struct CombineBody {
  Rows<const T> rows;
  Rows<const Y> residual;
  const int32_t* place;
  Rows<Y> y;
  int per_row;

  template <int V>
  struct Values {
    float sum[V];
  };
  template <int V>
  __device__ void load(Values<V>& v, const Piece& at) const {
    float next[V];
#pragma unroll
    for (float& sum : v.sum) sum = 0;
    const int32_t* const places = place + at.r * per_row;
    for (int j = 0; j < per_row; ++j) {
      if (places[j] < 0) continue;
      get(rows.at(places[j], at.c), at.n, next);
#pragma unroll
      for (int i = 0; i < V; ++i) v.sum[i] += next[i];
    }
    if (residual.data == nullptr) return;
    get(residual.at(at.r, at.c), at.n, next);
#pragma unroll
    for (int i = 0; i < V; ++i) v.sum[i] += next[i];
  }
  template <int V>
  __device__ void store(const Values<V>& v, const Piece& at) const {
    put(y.at(at.r, at.c), at.n, v.sum);
  }
};

template <typename T>
struct RouteBackwardRow {
  const float *dweights, *logits, *lse, *weights;
  const int32_t *choices, *counts, *order;
  T* dl;
  float* terms;
  int64_t rows, first_row, per_line;  // per_line: 0: all rows
  float balance, z, share;            // share: f of one count
  int experts, per_row;
  bool normalize;
};

template <typename T>
__global__ void __launch_bounds__(kRouteThreads) route_backward_kernel(RouteBackwardRow<T> op) {
  __shared__ int chosen[kRouteWarps][kWarp];
  __shared__ float added[kRouteWarps][kWarp];  // dl of the chosen experts, without what all experts have
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = lane_id();
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kRouteWarps + warp;
  if (r >= op.rows) return;
  const float* const logits = op.logits + r * op.experts;
  const float lse = op.lse[r];
  const bool used = lane < op.per_row;
  const int64_t at = r * op.per_row + lane;
  const float w = used ? op.weights[at] : 0, dw = used ? op.dweights[at] : 0, weighted = warp_sum(w * dw);
  chosen[warp][lane] = used ? op.choices[at] : -1;
  added[warp][lane] = w * (op.normalize ? dw - weighted : dw);
  sync_warp();

  const int32_t* const counts =
      op.counts == nullptr || op.per_line == 0
          ? op.counts
          : op.counts + quotient(op.order != nullptr ? op.order[r] : op.first_row + r, op.per_line) * op.experts;
  const auto f = [&](int e) { return counts == nullptr ? 0.0f : op.share * static_cast<float>(counts[e]); };
  float fp = 0, entropy = 0;
  for (int e = lane; e < op.experts; e += kWarp) {
    const float p = expf(logits[e] - lse);
    fp += f(e) * p;
    entropy += p == 0 ? 0.0f : p * (lse - logits[e]);  // a logit of −∞ has p = 0
  }
  fp = warp_sum(fp);
  entropy = warp_sum(entropy);
  const float rest = op.z * lse - (op.normalize ? 0.0f : weighted);
  for (int e = lane; e < op.experts; e += kWarp) {
    float sum = expf(logits[e] - lse) * (op.balance * (f(e) - fp) + rest);
    for (int j = 0; j < op.per_row; ++j)
      if (chosen[warp][j] == e) sum += added[warp][j];
    op.dl[r * op.experts + e] = T(sum);
  }
  if (op.terms == nullptr || lane > 0) return;
  op.terms[3 * r] = static_cast<float>(op.experts) * fp;
  op.terms[3 * r + 1] = lse * lse;
  op.terms[3 * r + 2] = entropy;
}

/// Returns the order of the rows of a Route or RouteBackward; null: natural, or without effect.
template <typename Op>
const int32_t* order_of(const Op& op) {
  return op.order && op.rows_per_count > 0 ? op.order.template as<int32_t>() : nullptr;
}

dim3 route_blocks(int64_t rows) { return dim3(static_cast<unsigned>(divide_up(rows, int64_t{kRouteWarps}))); }

}  // namespace

void run(Exec& ex, const Route& op) {
  TRAINER_CHECK(op.logits.dtype == DType::f32, "router logits are {}: CUDA devices support only fp32",
                name_of(op.logits.dtype));
  const int64_t rows = op.logits.rows(), experts = op.logits.cols(), k = op.choices.cols();
  if (ex.device.dry()) return;
  const cudaStream_t stream = device::cuda::stream_of(ex.device);
  if (rows > 0)
    device::cuda::launch(stream, {route_blocks(rows), dim3(kRouteThreads)}, route_kernel,
                         RouteRow{.logits = op.logits.as<float>(),
                                  .choices = op.choices.as<int32_t>(),
                                  .weights = op.weights.as<float>(),
                                  .lse = op.lse.as<float>(),
                                  .rows = rows,
                                  .first_row = op.first_row,
                                  .order = op.order ? op.order.as<int32_t>() : nullptr,
                                  .experts = static_cast<int>(experts),
                                  .per_row = static_cast<int>(k),
                                  .from = op.from,
                                  .normalize = op.normalize});
  if (!op.counts) return;
  const int64_t lines = op.counts.count() / experts, per_line = op.rows_per_count;
  device::cuda::launch(stream,
                       {dim3(static_cast<unsigned>(experts), static_cast<unsigned>(lines)), dim3(kRouteThreads)},
                       count_kernel, op.choices.as<int32_t>(), order_of(op), per_line == 0 ? 0 : op.first_row * k,
                       rows * k, (per_line == 0 ? rows : per_line) * k, static_cast<int>(k), op.counts.as<int32_t>());
}

void run(Exec& ex, const SortRows& op) {
  const int64_t n = op.choices.count(), blocks = divide_up(n, int64_t{kSortItems});
  const Scratch starts = ex.take("sort", {std::max<int64_t>(1, blocks), op.experts}, DType::i32);
  if (ex.device.dry() || n == 0) return;
  const SortItems items{op.choices.as<int32_t>(),      n,
                        static_cast<int>(op.experts),  static_cast<int>(blocks),
                        starts.tensor().as<int32_t>(), op.order.as<int32_t>(),
                        op.place.as<int32_t>()};
  const cudaStream_t stream = device::cuda::stream_of(ex.device);
  const device::cuda::LaunchConfig grid{dim3(static_cast<unsigned>(blocks)), dim3(kSortThreads)};
  device::cuda::launch(stream, grid, sort_kernel<false>, items);
  device::cuda::launch(stream, {dim3(1), dim3(static_cast<unsigned>(round_up(op.experts, int64_t{kWarp})))},
                       starts_kernel, items);
  device::cuda::launch(stream, grid, sort_kernel<true>, items);
}

void run(Exec& ex, const GatherRows& op) {
  if (ex.device.dry()) return;
  if (!gather_in<Words<4>>(ex, op) && !gather_in<uint32_t>(ex, op) && !gather_in<uint16_t>(ex, op))
    gather_in<uint8_t>(ex, op);
}

void run(Exec& ex, const CombineRows& op) {
  for_compute_type(op.rows.dtype, "rows to combine", [&]<typename T>(T) {
    for_compute_type(op.y.dtype, "combined rows", [&]<typename Y>(Y) {
      if constexpr (sizeof(Y) >= sizeof(T)) {
        const int64_t rows = op.y.rows();
        if (ex.device.dry() || rows == 0) return;
        map<wide_of<Y>()>(ex,
                          CombineBody<T, Y>{rows_in<T>(op.rows), rows_in<Y>(op.residual), op.place.as<int32_t>(),
                                            rows_of<Y>(op.y), static_cast<int>(op.place.count() / rows)},
                          rows, op.y.cols(), {op.rows, op.residual, op.y}, /*joins=*/false);
      }
    });
  });
}

void run(Exec& ex, const RouteBackward& op) {
  for_compute_type(op.dl.dtype, "router gradient", [&]<typename T>(T) {
    const int64_t rows = op.logits.rows(), experts = op.logits.cols(), k = op.choices.cols();
    if (ex.device.dry() || rows == 0) return;
    device::cuda::launch(
        device::cuda::stream_of(ex.device), {route_blocks(rows), dim3(kRouteThreads)}, route_backward_kernel<T>,
        RouteBackwardRow<T>{.dweights = op.dweights.as<float>(),
                            .logits = op.logits.as<float>(),
                            .lse = op.lse.as<float>(),
                            .weights = op.weights.as<float>(),
                            .choices = op.choices.as<int32_t>(),
                            .counts = op.counts ? op.counts.as<int32_t>() : nullptr,
                            .order = order_of(op),
                            .dl = op.dl.as<T>(),
                            .terms = op.terms ? op.terms.as<float>() : nullptr,
                            .rows = rows,
                            .first_row = op.first_row,
                            .per_line = op.rows_per_count,
                            .balance = static_cast<float>(op.balance),
                            .z = static_cast<float>(op.z),
                            .share = op.counts ? static_cast<float>(1 / static_cast<double>(k * op.counted_rows)) : 0,
                            .experts = static_cast<int>(experts),
                            .per_row = static_cast<int>(k),
                            .normalize = op.normalize});
  });
}

}  // namespace trainer::ops::cuda
