#pragma once
// Mirrors and graphs of a CUDA device.
#include <cuda_runtime.h>

#include <functional>
#include <memory>

#include "device/device.h"

namespace trainer::device::cuda {

/// `copies` is the stream for copies to the host. Both streams must outlive the mirror.
std::unique_ptr<Mirror> make_mirror(int ordinal, cudaStream_t compute, cudaStream_t copies);

/// Captures the work that `work` enqueues on `stream`.
std::unique_ptr<Graph> capture(cudaStream_t stream, const std::function<void()>& work);

}  // namespace trainer::device::cuda
