// The emulated CUDA runtime, except for streams: errors, device attributes, launches, allocation and copies.
#include <algorithm>

#include "machine.h"

namespace emulator {

namespace {

thread_local cudaError_t last_error = cudaSuccess;
int registrations_left = -1, allocations_left = -1, pinned = 0;  // guarded by the machine's mutex

/// Decrements a limit; returns false if it is 0. -1 means no limit.
bool take(int& left) {
  if (left == 0) return false;
  if (left > 0) --left;
  return true;
}

/// Returns true if a range that a copy accesses is within one allocation of the device, or in host memory.
bool valid(const void* address, size_t bytes, bool device) {
  const Memory& memory = machine().memory;
  return device ? memory.holds(address, bytes) : !memory.inside(address);
}

}  // namespace

void limit_pinning(int registrations, int allocations) {
  const Lock lock(machine().mutex);
  registrations_left = registrations;
  allocations_left = allocations;
}
int pinned_blocks() {
  const Lock lock(machine().mutex);
  return pinned;
}

cudaError_t note(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

cudaError_t allow_shared(const void* kernel, size_t bytes) {
  const Lock lock(machine().mutex);
  if (bytes > kSharedLimit) return note(cudaErrorInvalidValue);
  size_t& limit = machine().shared_limits[kernel];
  limit = std::max(limit, bytes);
  return cudaSuccess;
}

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> thread) {
  const Call lock;
  const dim3 grid = config.gridDim, block = config.blockDim;
  const auto it = machine().shared_limits.find(kernel);
  constexpr size_t kStatic = 1 << 10;  // assumed of kernels with dynamic memory; the default limit includes both
  const size_t limit = it == machine().shared_limits.end() ? kSharedDefault - kStatic : it->second;
  if (grid.count() == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535 || block.count() == 0 ||
      block.count() > 1024 || block.z > 64)
    return note(cudaErrorInvalidConfiguration);
  if (config.dynamicSmemBytes > limit) return note(cudaErrorInvalidValue);
  return enqueue(config.stream, [grid, block, bytes = config.dynamicSmemBytes, thread = std::move(thread)] {
    run_grid(grid, block, bytes, thread);
    return true;
  });
}

}  // namespace emulator

using namespace emulator;

const char* cudaGetErrorName(cudaError_t status) {
  switch (status) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorIllegalState:
      return "cudaErrorIllegalState";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
  }
  return "unknown";
}
const char* cudaGetErrorString(cudaError_t) { return "emulated"; }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaGetDeviceCount(int* count) {
  const Lock lock(machine().mutex);
  *count = visible_devices();
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  switch (which) {
    case cudaDevAttrMultiProcessorCount:
      *value = 4;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(kSharedLimit);
      break;
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  std::strcpy(properties->name, "emulated");
  properties->uuid = {{static_cast<char>(0xe0), static_cast<char>(first_visible_device() + ordinal)}};
  properties->totalGlobalMem = kDeviceMemory;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int ordinal) {
  std::snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0",
                (first_visible_device() + ordinal) / machine().instances);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const Call lock;
  *total_bytes = kDeviceMemory;
  *free_bytes = kDeviceMemory - machine().memory.held();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  const Call lock;
  *memory = machine().memory.allocate(bytes);
  return note(*memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaFree(void* memory) {
  Call lock;
  if (memory == nullptr) return cudaSuccess;
  wait_for_device(lock);
  return note(machine().memory.release(static_cast<std::byte*>(memory)) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  const Call lock;
  *memory = take(allocations_left) ? std::malloc(bytes) : nullptr;
  pinned += *memory != nullptr;
  return note(*memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaFreeHost(void* memory) {
  const Call lock;
  pinned -= memory != nullptr;
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  const Call lock;
  if (memory == nullptr || bytes == 0) return note(cudaErrorInvalidValue);
  if (!take(registrations_left)) return note(cudaErrorMemoryAllocation);
  ++pinned;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void*) {
  const Call lock;
  --pinned;
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  const Call lock;
  if (width == 0 || rows == 0) return cudaSuccess;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (to_pitch < width || from_pitch < width || !valid(to, to_pitch * (rows - 1) + width, to_device) ||
      !valid(from, from_pitch * (rows - 1) + width, from_device))
    return note(cudaErrorInvalidValue);
  return enqueue(stream, [=] {
    for (size_t row = 0; row < rows; ++row)
      std::memcpy(static_cast<std::byte*>(to) + row * to_pitch, static_cast<const std::byte*>(from) + row * from_pitch,
                  width);
    return true;
  });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  const Call lock;
  if (bytes == 0) return cudaSuccess;
  if (!valid(to, bytes, true)) return note(cudaErrorInvalidValue);
  return enqueue(stream, [=] {
    std::memset(to, value, bytes);
    return true;
  });
}
