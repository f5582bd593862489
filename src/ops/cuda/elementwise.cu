#include "device/cuda/runtime.h"
#include "ops/cuda/ops.h"
#include "ops/cuda/warp.cuh"

namespace trainer::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void fill(T* x, int64_t n, T value) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) x[i] = value;
}

template <typename T>
void launch_fill(Exec& ex, const Tensor& x, T value) {
  const int64_t n = x.count();
  if (n == 0) return;
  device::cuda::launch(device::cuda::stream_of(ex.device),
                       {dim3(static_cast<unsigned>(divide_up(n, kThreads))), dim3(kThreads)}, fill<T>, x.as<T>(), n,
                       value);
}

}  // namespace

void run(Exec& ex, const Fill& op) {
  if (ex.device.dry()) return;
  switch (op.x.dtype) {
    case DType::f64:
      return launch_fill(ex, op.x, op.value);
    case DType::f32:
      return launch_fill(ex, op.x, static_cast<float>(op.value));
    case DType::bf16:
      return launch_fill(ex, op.x, bf16(op.value));
    case DType::i32:
      return launch_fill(ex, op.x, static_cast<int32_t>(op.value));
    case DType::i64:
      return launch_fill(ex, op.x, static_cast<int64_t>(op.value));
    case DType::u16:
      return launch_fill(ex, op.x, static_cast<uint16_t>(op.value));
    case DType::u8:
      return launch_fill(ex, op.x, static_cast<uint8_t>(op.value));
  }
}

void run(Exec& ex, const Copy& op) {
  const int64_t size = size_of(op.x.dtype);
  ex.device.copy_rows(op.y.data, op.y.ld() * size, op.x.data, op.x.ld() * size, op.x.rows(), op.x.cols() * size);
}

}  // namespace trainer::ops::cuda
