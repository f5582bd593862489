// The emulated CUDA machine itself: kernels that use blocks, barriers and warps compute what CUDA specifies, and what
// CUDA forbids is detected.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "device/cuda/runtime.h"
#include "emulator.h"
#include "ops/cuda/warp.cuh"
#include "ops/elementwise.h"

namespace trainer {
namespace {

using device::cuda::launch;
using device::cuda::stream_of;
using emulator::Order;

struct EmulatorTest : ::testing::TestWithParam<Order> {
  void SetUp() override { emulator::set_order(GetParam()); }
  void TearDown() override { emulator::set_order(Order::ascending); }
  std::unique_ptr<device::Device> device = device::cuda::make_device(0, 1);
  cudaStream_t stream = stream_of(*device);

  template <typename T>
  T* upload(const std::vector<T>& values) {
    std::byte* memory = device->allocate("test", static_cast<int64_t>(values.size() * sizeof(T)));
    device->copy_to_device(memory, values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
    return reinterpret_cast<T*>(memory);
  }
  template <typename T>
  std::vector<T> download(const T* from, size_t n) {
    std::vector<T> values(n);
    device->copy_to_host(values.data(), reinterpret_cast<const std::byte*>(from), static_cast<int64_t>(n * sizeof(T)));
    return values;
  }
};
INSTANTIATE_TEST_SUITE_P(Orders, EmulatorTest, ::testing::Values(Order::ascending, Order::descending, Order::shuffled));

__global__ void where_am_i(int* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] += static_cast<int>(block * 1000 + thread);
}

TEST_P(EmulatorTest, EveryThreadOfEveryBlockRunsOnce) {
  const dim3 grid(3, 2, 2), block(5, 3, 2);
  int* out = upload(std::vector<int>(grid.count() * block.count()));
  launch(stream, {grid, block}, where_am_i, out);
  const std::vector<int> got = download(out, grid.count() * block.count());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_EQ(got[i], static_cast<int>(i / block.count() * 1000 + i % block.count()));
}

/// Each block reverses its part through shared memory, in `rounds` steps of one barrier each.
__global__ void reverse_and_rotate(int* x, int rounds) {
  int* shared = ops::cuda::dynamic_shared<int>();
  const unsigned n = blockDim.x, t = threadIdx.x;
  int value = x[blockIdx.x * n + t];
  for (int r = 0; r < rounds; ++r) {
    shared[(r % 2) * n + t] = value;
    __syncthreads();
    value = shared[(r % 2) * n + (t + 1) % n];
  }
  x[blockIdx.x * n + t] = value;
}

TEST_P(EmulatorTest, BarriersOrderSharedMemory) {
  for (const unsigned n : {1u, 7u, 32u, 100u, 1024u}) {
    std::vector<int> values(3 * n);
    std::iota(values.begin(), values.end(), 0);
    int* x = upload(values);
    launch(stream, {dim3(3), dim3(n), 2 * n * sizeof(int)}, reverse_and_rotate, x, 5);
    const std::vector<int> got = download(x, 3 * n);
    for (unsigned i = 0; i < 3 * n; ++i) EXPECT_EQ(got[i], static_cast<int>(i / n * n + (i % n + 5) % n));
  }
}

__global__ void sums(const float* x, float* block_sums, float* other) {
  float* shared = ops::cuda::dynamic_shared<float>();
  const unsigned t = threadIdx.x, warps = blockDim.x / 32;
  const float mine = x[blockIdx.x * blockDim.x + t];
  const float sum = ops::cuda::block_sum(mine, shared, static_cast<int>(warps));
  const float largest = ops::cuda::block_max(mine, shared, static_cast<int>(warps));
  other[blockIdx.x * blockDim.x + t] = ops::cuda::shuffle_xor(mine, 5);
  if (t == 0) {
    block_sums[2 * blockIdx.x] = sum;
    block_sums[2 * blockIdx.x + 1] = largest;
  }
}

TEST_P(EmulatorTest, WarpsExchangeValues) {
  constexpr unsigned kThreads = 96, kBlocks = 4;
  std::vector<float> values(kBlocks * kThreads);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 37 % 101);
  float *x = upload(values), *out = upload(std::vector<float>(2 * kBlocks)), *other = upload(values);
  launch(stream, {dim3(kBlocks), dim3(kThreads), 3 * sizeof(float)}, sums, x, out, other);
  const std::vector<float> got = download(out, 2 * kBlocks), exchanged = download(other, values.size());
  for (unsigned b = 0; b < kBlocks; ++b) {
    float sum = 0, largest = 0;
    for (unsigned i = 0; i < kThreads; ++i) {
      const float value = values[b * kThreads + i];
      sum += value;
      largest = std::max(largest, value);
      EXPECT_EQ(exchanged[b * kThreads + i], values[b * kThreads + (i ^ 5)]);
    }
    EXPECT_EQ(got[2 * b], sum);
    EXPECT_EQ(got[2 * b + 1], largest);
  }
}

TEST_P(EmulatorTest, OperatorsAndCopiesKeepTheirOrder) {
  Arena arena(*device, Arena::Mode::heap);
  Meter meter;
  Exec ex{*device, arena, meter};
  Buffer x(*device, "test", {5, 7}, DType::f32), y(*device, "test", {5, 7}, DType::f32);
  const std::vector<float> values(35, 1.5f);
  device->copy_to_device(x.tensor().data, values.data(), x.tensor().bytes());
  ops::run(ex, ops::Copy{x.tensor().col_range(2, 3), y.tensor().col_range(1, 3)});
  device->clear(x.tensor().data, x.tensor().bytes());
  const std::vector<float> got = download(y.tensor().as<float>(), 35);
  for (int i = 0; i < 35; ++i) EXPECT_EQ(got[static_cast<size_t>(i)], i % 7 >= 1 && i % 7 < 4 ? 1.5f : 0.0f);
}

TEST_P(EmulatorTest, LargeCopiesGoThroughAllStagingBuffers) {
  std::vector<uint32_t> values(static_cast<size_t>(6.3 * (4 << 20) / sizeof(uint32_t)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint32_t>(i * 2654435761u);
  uint32_t* x = upload(values);
  EXPECT_TRUE(download(x, values.size()) == values);
}

TEST(Emulator, RejectsWhatALaunchMayNotRequest) {
  const auto device = device::cuda::make_device(0, 1);
  const auto stream = stream_of(*device);
  EXPECT_THROW(launch(stream, {dim3(1), dim3(1025)}, where_am_i, static_cast<int*>(nullptr)), Error);
  EXPECT_THROW(launch(stream, {dim3(0), dim3(1)}, where_am_i, static_cast<int*>(nullptr)), Error);
  EXPECT_THROW(launch(stream, {dim3(1), dim3(1), 228 << 10}, where_am_i, static_cast<int*>(nullptr)), Error);
  EXPECT_THROW(device->allocate("test", int64_t{5} << 30), Error);
  EXPECT_THROW(device::cuda::make_device(1, 1), Error);
}

__global__ void half_reach_the_barrier(int* x) {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    ops::cuda::sync_warp();
  }
  x[0] = 1;
}
__global__ void lanes_disagree(int* x) {
  if (threadIdx.x < 16) {
    x[threadIdx.x] = ops::cuda::shuffle_xor(1, 1);
  } else {
    ops::cuda::sync_warp();
  }
}
__global__ void a_lane_is_missing(int* x) {
  if (threadIdx.x == 31) return;
  x[threadIdx.x] = ops::cuda::shuffle_xor(static_cast<int>(threadIdx.x), 1);
}
__global__ void write_at(char* x, int64_t at) { x[at] = 0; }
__global__ void shared_at(int64_t at) { ops::cuda::dynamic_shared<char>()[at] = 0; }

/// Runs one block on a new device, in the child process of a death test.
template <typename... P, typename... A>
void run_single(unsigned threads, void (*kernel)(P...), A... args) {
  const auto device = device::cuda::make_device(0, 1);
  launch(stream_of(*device), {dim3(1), dim3(threads), 256}, kernel, args...);
  device->synchronize();
}
template <typename T>
T* some_memory(int64_t bytes) {
  static const auto device = device::cuda::make_device(0, 1);
  return reinterpret_cast<T*>(device->allocate("test", bytes));
}

TEST(EmulatorDeath, BarriersThatNotAllReach) {
  EXPECT_DEATH(run_single(32, half_reach_the_barrier, some_memory<int>(4096)),
               "deadlock in block .* 16 wait in __sync");
}
TEST(EmulatorDeath, LanesThatDisagreeOrAreMissing) {
  EXPECT_DEATH(run_single(32, lanes_disagree, some_memory<int>(4096)),
               "in (sync_warp|shuffle_xor).*others of its warp in");
  EXPECT_DEATH(run_single(32, a_lane_is_missing, some_memory<int>(4096)), "lane 31 ended|waits for lanes 80000000");
  EXPECT_DEATH(run_single(31, a_lane_is_missing, some_memory<int>(4096)), "the last warp has 31 lanes");
}
TEST(EmulatorDeath, AccessesOutsideMemory) {
  EXPECT_DEATH(run_single(1, write_at, some_memory<char>(4096), int64_t{4096}), "is device memory");
  EXPECT_DEATH(run_single(1, shared_at, int64_t{256}), "segmentation fault");
  EXPECT_DEATH(
      {
        const auto device = device::cuda::make_device(0, 1);
        std::byte* memory = device->allocate("test", 100);
        launch(stream_of(*device), {dim3(1), dim3(1)}, write_at, reinterpret_cast<char*>(memory), int64_t{100});
        device->release("test", memory, 100);
      },
      "write past the end of an allocation of 100 bytes");
}
TEST(EmulatorDeath, HostCodeTouchesDeviceMemory) {
  EXPECT_DEATH(*some_memory<volatile int>(4096) = 1, "is device memory: touched by host code");
}

}  // namespace
}  // namespace trainer
