#include "ops/cuda/sort.cuh"

#include <bit>
#include <utility>

#include "device/cuda/runtime.h"

// A stable radix sort, eight bits at a time from the lowest. A block owns a range of keys, and thread d of the block
// places the keys whose digit is d, so that keys keep their order with no communication other than the counts.
namespace trainer::ops::cuda {
namespace {

constexpr int kDigits = 256, kScanThreads = 1024;
constexpr int64_t kKeys = 1024;  // per block

struct Run {
  const uint32_t* keys;
  const int32_t* rows;
  int64_t count;
  int shift;
};

/// Loads the digits of this block's keys into shared memory. Returns how many there are.
__device__ inline int load_digits(const Run& run, uint8_t* digits) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kKeys, left = run.count - first;
  const int n = static_cast<int>(left < kKeys ? left : kKeys);
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kDigits)
    digits[i] = static_cast<uint8_t>(run.keys[first + i] >> run.shift);
  __syncthreads();
  return n;
}

/// keys[r] = ids[r] − first, or `rows` for a token that is not in this table.
__global__ void __launch_bounds__(kDigits)
    key_kernel(const int32_t* ids, int64_t count, int64_t first, int64_t rows, uint32_t* keys, int32_t* order) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kDigits + threadIdx.x;
  if (r >= count) return;
  const int64_t row = ids[r] - first;
  keys[r] = static_cast<uint32_t>(row >= 0 && row < rows ? row : rows);
  order[r] = static_cast<int32_t>(r);
}

/// counts[d·blocks + block]
__global__ void __launch_bounds__(kDigits) count_kernel(Run run, int32_t* counts) {
  __shared__ uint8_t digits[kKeys];
  const int n = load_digits(run, digits);
  int found = 0;
  for (int i = 0; i < n; ++i) found += digits[i] == threadIdx.x;
  counts[static_cast<int64_t>(threadIdx.x) * gridDim.x + blockIdx.x] = found;
}

/// Replaces each count by the sum of the counts before it. Launched as one block.
__global__ void __launch_bounds__(kScanThreads) scan_kernel(int32_t* counts, int64_t count) {
  __shared__ int32_t sums[2][kScanThreads];
  const int64_t each = divide_up(count, int64_t{kScanThreads});
  const int64_t first = each * threadIdx.x, last = first + each < count ? first + each : count;
  int32_t sum = 0;
  for (int64_t i = first; i < last; ++i) sum += counts[i];
  int from = 0;
  sums[0][threadIdx.x] = sum;
  __syncthreads();
  for (unsigned distance = 1; distance < kScanThreads; distance *= 2, from ^= 1) {
    const int32_t before = threadIdx.x >= distance ? sums[from][threadIdx.x - distance] : 0;
    sums[from ^ 1][threadIdx.x] = sums[from][threadIdx.x] + before;
    __syncthreads();
  }
  int32_t running = sums[from][threadIdx.x] - sum;
  for (int64_t i = first; i < last; ++i) {
    const int32_t here = counts[i];
    counts[i] = running;
    running += here;
  }
}

__global__ void __launch_bounds__(kDigits) place_kernel(Run run, const int32_t* counts, uint32_t* keys, int32_t* rows) {
  __shared__ uint8_t digits[kKeys];
  const int n = load_digits(run, digits);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kKeys;
  int64_t to = counts[static_cast<int64_t>(threadIdx.x) * gridDim.x + blockIdx.x];
  for (int i = 0; i < n; ++i) {
    if (digits[i] != threadIdx.x) continue;
    keys[to] = run.keys[first + i];
    rows[to] = run.rows[first + i];
    ++to;
  }
}

/// start[v] = number of keys below v, v <= rows.
__global__ void __launch_bounds__(kDigits)
    start_kernel(const uint32_t* keys, int64_t count, int64_t rows, int32_t* start) {
  const int64_t v = static_cast<int64_t>(blockIdx.x) * kDigits + threadIdx.x;
  if (v > rows) return;
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (keys[middle] < static_cast<uint32_t>(v)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  start[v] = static_cast<int32_t>(low);
}

}  // namespace

SortedRows sort_rows(Exec& ex, const Tensor& ids, int64_t first, int64_t rows) {
  const int64_t n = ids.count(), blocks = divide_up(n, kKeys);
  TRAINER_CHECK(n < INT32_MAX && rows < INT32_MAX,
                "sorting uses 32-bit indices: {} tokens or {} table rows are too many", n, rows);
  SortedRows sorted{ex.take("embedding.start", {rows + 1}, DType::i32), ex.take("embedding.order", {n}, DType::i32),
                    ex.take("embedding.keys", {2, n}, DType::i32)};
  const Scratch other = ex.take("embedding.order_other", {n}, DType::i32);
  const Scratch counts = ex.take("embedding.counts", {kDigits * blocks}, DType::i32);
  if (ex.device.dry()) return sorted;

  const cudaStream_t stream = device::cuda::stream_of(ex.device);
  const auto grid = [](int64_t threads) {
    return device::cuda::LaunchConfig{dim3(static_cast<unsigned>(divide_up(threads, int64_t{kDigits}))), dim3(kDigits)};
  };
  uint32_t* key = reinterpret_cast<uint32_t*>(sorted.keys.tensor().as<int32_t>());
  uint32_t* next_key = key + n;
  int32_t *order = sorted.order.tensor().as<int32_t>(), *next_order = other.tensor().as<int32_t>();
  const int passes = static_cast<int>(divide_up(std::bit_width(static_cast<uint64_t>(rows)), 8));
  if (passes % 2 != 0) std::swap(order, next_order);  // the last pass writes sorted.order
  if (n > 0) {
    device::cuda::launch(stream, grid(n), key_kernel, ids.as<int32_t>(), n, first, rows, key, order);
    const device::cuda::LaunchConfig per_block{dim3(static_cast<unsigned>(blocks)), dim3(kDigits)};
    for (int pass = 0; pass < passes; ++pass) {
      const Run run{key, order, n, 8 * pass};
      int32_t* count = counts.tensor().as<int32_t>();
      device::cuda::launch(stream, per_block, count_kernel, run, count);
      device::cuda::launch(stream, {dim3(1), dim3(kScanThreads)}, scan_kernel, count, kDigits * blocks);
      device::cuda::launch(stream, per_block, place_kernel, run, count, next_key, next_order);
      std::swap(key, next_key);
      std::swap(order, next_order);
    }
  }
  sorted.tokens = key;
  device::cuda::launch(stream, grid(rows + 1), start_kernel, key, n, rows, sorted.start.tensor().as<int32_t>());
  return sorted;
}

}  // namespace trainer::ops::cuda
