#include "ops/cuda/ops.h"
#include "ops/cuda/reduce.cuh"
#include "ops/norm.h"

namespace trainer::ops::cuda {
namespace {

template <typename T>
struct BackwardRows {
  Rows<const T> dy, x, residual;
  const T* gain;
  const float *mean, *rstd;
  Rows<T> dx;
  float *gain_sums, *bias_sums;            // [groups · blocks, cols]; bias_sums may be null
  int64_t rows, cols, block_rows, groups;  // a row has `groups` groups of `cols` columns; blockIdx.y is the group
  bool center;
  float shift;  // added to gains
};

constexpr int kWideThreads = 512;
/// Threads on a multiprocessor: as many as have registers for their pieces of three operands, and few enough for their
/// sums in shared memory.
constexpr int resident_threads(int pieces) { return pieces <= 3 ? 768 : pieces <= 5 ? 512 : 384; }
/// The pieces per thread for which there are kernels.
constexpr int kPieces[] = {3, 5, 7};

/// With n = (x − mean)·rstd and g = dy·(gain + shift):  dx = rstd·(g − Σg/H − n·Σ(g·n)/H), Σg only when centred.
struct RowTerms {
  float rstd, constant, slope;
  __device__ RowTerms(float r, const float (&sums)[2], float count, bool center)
      : rstd(r), constant(center ? -r * (sums[0] / count) : 0.0f), slope(-r * (sums[1] / count)) {}
  __device__ float gradient(float g, float n) const { return fmaf(g, rstd, fmaf(n, slope, constant)); }
};

/// Returns the index of this block's partial sums.
__device__ inline int64_t block_index() { return static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x; }

struct alignas(16) Quad {
  float value[4];
};

/// A team of blockDim.x threads iterates over its rows; threadIdx.y is the team. A thread holds K pieces of a row in
/// their storage type, and unpacks them twice: before and after the sums over the row. It adds its columns to the
/// team's sums over rows in shared memory, where no other thread accesses them; registers could hold neither long rows'
/// sums nor enough rows in flight. At the end the teams' sums are added in order. Blocks of several teams have teams of
/// one warp, so only blocks of one team have barriers. The number of columns is a multiple of a piece.
template <typename T, int K>
__global__ void __launch_bounds__(resident_threads(K)) norm_backward_kernel(BackwardRows<T> op) {
  constexpr int V = wide_of<T>(), kQuads = V / 4;
  __shared__ float shared[2][2 * kMostWarps];
  const int threads = static_cast<int>(blockDim.x), team = static_cast<int>(threadIdx.y);
  const int teams = static_cast<int>(blockDim.y), pieces = static_cast<int>(op.cols) / V;
  const int first = static_cast<int>(blockIdx.x * op.block_rows);  // 32 bits, to save registers
  const int last = static_cast<int>(first + op.block_rows < op.rows ? first + op.block_rows : op.rows);
  const int64_t start = blockIdx.y * op.cols;
  const bool has_bias = op.bias_sums != nullptr, has_residual = op.residual.data != nullptr;
  const int of_team = (has_bias ? 2 : 1) * kQuads * pieces;
  Quad* const sums = dynamic_shared<Quad>() + team * of_team;  // gains' and biases' [kQuads, pieces], for each team
  const auto piece = [&](int k) { return static_cast<int>(threadIdx.x) + k * threads; };
  for (int at = static_cast<int>(threadIdx.x); at < of_team; at += threads) sums[at] = {};
  __syncthreads();
  for (int r = first + team; r < last; r += teams) {
    Stored<T, V> dy[K], x[K], residual[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      dy[k] = {}, x[k] = {}, residual[k] = {};
      if (piece(k) >= pieces) continue;
      dy[k] = stored<V>(op.dy.at(r, start) + piece(k) * V);
      x[k] = stored<V>(op.x.at(r, start) + piece(k) * V);
      if (has_residual) residual[k] = stored<V>(op.residual.at(r, start) + piece(k) * V);
    }
    const int64_t at = static_cast<int64_t>(r) * op.groups + blockIdx.y;
    const float mean = op.center ? op.mean[at] : 0.0f, rstd = op.rstd[at];
    float row_sums[2] = {};
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (piece(k) >= pieces) continue;
      float d[V], n[V], gain[V];
      values(dy[k], d);
      values(x[k], n);
      get_gains(op.gain + piece(k) * V, V, op.shift, gain);
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        Quad gains = sums[q * pieces + piece(k)], biases{};
        if (has_bias) biases = sums[(kQuads + q) * pieces + piece(k)];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float di = d[4 * q + i], ni = (n[4 * q + i] - mean) * rstd, g = di * gain[4 * q + i];
          gains.value[i] = fmaf(di, ni, gains.value[i]);
          biases.value[i] += di;
          row_sums[0] += g;
          row_sums[1] = fmaf(g, ni, row_sums[1]);
        }
        sums[q * pieces + piece(k)] = gains;
        if (has_bias) sums[(kQuads + q) * pieces + piece(k)] = biases;
      }
    }
    if (threads > kWarp) {
      block_sums(row_sums, shared[r & 1]);
    } else {
      for (float& sum : row_sums) sum = warp_sum(sum);
    }
    const RowTerms terms(rstd, row_sums, static_cast<float>(op.cols), op.center);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (piece(k) >= pieces) continue;
      float d[V], n[V], gain[V], out[V];
      unpack_again(dy[k], d);
      unpack_again(x[k], n);
      values(residual[k], out);
      get_gains(op.gain + piece(k) * V, V, op.shift, gain);
#pragma unroll
      for (int i = 0; i < V; ++i) out[i] += terms.gradient(d[i] * gain[i], (n[i] - mean) * rstd);
      put(op.dx.at(r, start) + piece(k) * V, V, out);
    }
  }
  __syncthreads();
  const Quad* const all = dynamic_shared<Quad>();
  const int in_block = threads * teams, me = team * threads + static_cast<int>(threadIdx.x);
  for (int at = me; at < of_team; at += in_block) {
    Quad total = all[at];
    for (int t = 1; t < teams; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) total.value[i] += all[t * of_team + at].value[i];
    const int row = at / pieces, p = at - row * pieces;
    float* const to = row < kQuads ? op.gain_sums : op.bias_sums;
    put(to + block_index() * op.cols + p * V + row % kQuads * 4, 4, total.value);
  }
}

/// Processes rows that are too long for the registers of a block. The sums stay in memory (in practice in the caches),
/// and rows are read twice.
template <typename T, int V>
__global__ void __launch_bounds__(kWideThreads) norm_backward_wide_kernel(BackwardRows<T> op) {
  __shared__ float shared[2][2 * kMostWarps];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * op.block_rows, step = static_cast<int64_t>(blockDim.x) * V;
  const int64_t last = first + op.block_rows < op.rows ? first + op.block_rows : op.rows;
  const float count = static_cast<float>(op.cols);
  const int64_t start = blockIdx.y * op.cols;
  float* gain_sums = op.gain_sums + block_index() * op.cols;
  float* bias_sums = op.bias_sums == nullptr ? nullptr : op.bias_sums + block_index() * op.cols;
  for (int64_t r = first; r < last; ++r) {
    const int64_t at = r * op.groups + blockIdx.y;
    const float mean = op.center ? op.mean[at] : 0.0f, rstd = op.rstd[at];
    const auto load = [&](int64_t c, int n, float(&dy)[V], float(&x)[V], float(&gain)[V]) {
      get(op.dy.at(r, start + c), n, dy);
      get(op.x.at(r, start + c), n, x);
      get_gains(op.gain + c, n, op.shift, gain);
#pragma unroll
      for (int i = 0; i < V; ++i) x[i] = i < n ? (x[i] - mean) * rstd : 0.0f;
    };
    float sums[2] = {};
    for (int64_t c = static_cast<int64_t>(threadIdx.x) * V; c < op.cols; c += step) {
      const int n = static_cast<int>(op.cols - c < V ? op.cols - c : V);
      float dy[V], x[V], gain[V];
      load(c, n, dy, x, gain);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        sums[0] += dy[i] * gain[i];
        sums[1] = fmaf(dy[i] * gain[i], x[i], sums[1]);
        if (i >= n) continue;
        gain_sums[c + i] = fmaf(dy[i], x[i], r == first ? 0.0f : gain_sums[c + i]);
        if (bias_sums != nullptr) bias_sums[c + i] = (r == first ? 0.0f : bias_sums[c + i]) + dy[i];
      }
    }
    block_sums(sums, shared[r & 1]);
    const RowTerms terms(rstd, sums, count, op.center);
    for (int64_t c = static_cast<int64_t>(threadIdx.x) * V; c < op.cols; c += step) {
      const int n = static_cast<int>(op.cols - c < V ? op.cols - c : V);
      float dy[V], x[V], gain[V], out[V] = {};
      load(c, n, dy, x, gain);
      if (op.residual.data != nullptr) get(op.residual.at(r, start + c), n, out);
#pragma unroll
      for (int i = 0; i < V; ++i) out[i] += terms.gradient(dy[i] * gain[i], x[i]);
      put(op.dx.at(r, start + c), n, out);
    }
  }
}

/// The shape of the blocks for a row length. `pieces`: per thread; 0: the kernel for long rows.
struct BackwardShape {
  int pieces = 0, threads = kWideThreads, teams = 1;
  int resident = 1;  // blocks on a multiprocessor
  size_t shared_bytes = 0;
};
/// For the kernel for long rows, which also takes short ones that do not consist of whole pieces.
BackwardShape wide_shape(int64_t cols) {
  const auto threads = static_cast<int>(std::clamp<int64_t>(round_up(cols, int64_t{kWarp}), kWarp, kWideThreads));
  return {.threads = threads, .resident = kWideThreads / threads};
}
template <typename T>
BackwardShape backward_shape(const device::cuda::Facts& gpu, int64_t cols, bool bias) {
  constexpr int64_t kBlock = 2048;  // bytes that a block takes besides its sums
  if (cols % wide_of<T>() != 0) return wide_shape(cols);
  const int64_t row = cols / wide_of<T>(), sums = std::max<int64_t>(1, (bias ? 2 : 1) * cols) * int64_t{sizeof(float)};
  const int64_t warps = std::max<int64_t>(1, divide_up(row, int64_t{kWarp} * kPieces[2]));
  for (const int pieces : kPieces) {
    if (row > pieces * kWarp * warps) continue;
    const int64_t most = resident_threads(pieces) / kWarp, fit = (gpu.shared_per_block - kBlock) / sums;
    if (warps > most || fit == 0) break;
    const int64_t teams = warps == 1 ? std::min(most, fit) : 1;
    const int64_t resident = warps == 1 ? 1 : std::min(most / warps, gpu.shared_per_block / (sums + kBlock));
    return {pieces, static_cast<int>(warps * kWarp), static_cast<int>(teams), static_cast<int>(resident),
            static_cast<size_t>(teams * sums)};
  }
  return wide_shape(cols);
}

template <typename T, int V>
void launch_backward(Exec& ex, const BackwardRows<T>& op, const BackwardShape& shape, int64_t blocks) {
  const auto start = [&](auto kernel) {
    device::cuda::launch(
        device::cuda::stream_of(ex.device),
        {dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(op.groups)),
         dim3(static_cast<unsigned>(shape.threads), static_cast<unsigned>(shape.teams)), shape.shared_bytes},
        kernel, op);
  };
  if constexpr (V == wide_of<T>()) {
    if (shape.pieces == kPieces[0]) return start(norm_backward_kernel<T, kPieces[0]>);
    if (shape.pieces == kPieces[1]) return start(norm_backward_kernel<T, kPieces[1]>);
    if (shape.pieces == kPieces[2]) return start(norm_backward_kernel<T, kPieces[2]>);
  }
  start(norm_backward_wide_kernel<T, V>);
}

}  // namespace

void run(Exec& ex, const NormBackward& op) {
  for_compute_type(op.x.dtype, "norm x", [&]<typename T>(T) {
    const int64_t rows = op.x.rows(), cols = op.x.cols() / op.groups;
    TRAINER_CHECK(rows < INT32_MAX / 2, "norm backward over {} rows: CUDA kernels support fewer than {}", rows,
                  INT32_MAX / 2);
    const device::cuda::Facts& gpu = ex.device.gpu();
    constexpr int kPiece = wide_of<T>();
    const BackwardShape shape = backward_shape<T>(gpu, cols, static_cast<bool>(op.dbias));
    const int64_t most = int64_t{gpu.multiprocessors} * shape.resident;  // one wave of blocks
    const int64_t block_rows = std::max<int64_t>(16, divide_up(rows, std::max<int64_t>(1, most / op.groups))),
                  blocks = divide_up(rows, block_rows), all_blocks = blocks * op.groups;
    const Scratch partials = ex.take("norm.partials", {op.dbias ? 2 * all_blocks : all_blocks, cols}, DType::f32);
    float* const gain_sums = partials.tensor().as<float>();
    const BackwardRows<T> args{rows_in<T>(op.dy),
                               rows_in<T>(op.x),
                               rows_in<T>(op.residual),
                               op.gain.as<T>(),
                               op.center ? op.mean.as<float>() : nullptr,
                               op.rstd.as<float>(),
                               rows_of<T>(op.dx),
                               gain_sums,
                               op.dbias ? gain_sums + all_blocks * cols : nullptr,
                               rows,
                               cols,
                               block_rows,
                               op.groups,
                               op.center,
                               static_cast<float>(gain_shift(op.gain_offset))};
    if (!ex.device.dry() && rows > 0 && cols > 0) {
      const bool whole = whole_pieces({op.dy, op.x, op.residual, op.dx, op.gain}, rows, cols, kPiece);
      whole ? launch_backward<T, kPiece>(ex, args, shape, blocks)
            : launch_backward<T, 1>(ex, args, wide_shape(cols), blocks);
    }
    add_up(ex, partials, {op.dgain, op.accumulate_gain}, {op.dbias, op.accumulate_bias});
  });
}

}  // namespace trainer::ops::cuda
