#pragma once
// The CUDA runtime for device/cuda, ops/cuda and comm/nccl; nothing else includes this header.
#include <cuda_runtime.h>

#include <utility>

#include "device/device.h"

namespace trainer::device::cuda {

/// Throws Error{Code::device} "what: cudaErrorName (text)" if the status is an error.
void check(cudaError_t status, const char* what);

/// Returns the compute stream of a CUDA device; an internal error on any other device.
cudaStream_t stream_of(Device& device);

struct LaunchConfig {
  dim3 blocks, threads;
  size_t shared_bytes = 0;  // dynamic shared memory
};

/// Launches the kernel on the stream. Throws Code::device if the launch is rejected.
template <typename... P, typename... A>
void launch(cudaStream_t stream, const LaunchConfig& grid, void (*kernel)(P...), A&&... args) {
  constexpr size_t kSafe = 32 << 10;  // the default limit of 48 KiB includes the kernel's static shared memory
  if (grid.shared_bytes > kSafe)
    check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(grid.shared_bytes)),
        "shared memory of a kernel");
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<A>(args)...), "kernel launch");
}

}  // namespace trainer::device::cuda
