#include "device/cuda/cuda_device.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "device/cuda/mirror.h"
#include "device/cuda/runtime.h"

namespace trainer::device::cuda {
namespace {

/// Copies between host and device go through pinned buffers, so that they overlap with kernels and with memcpy.
constexpr int kStages = 4;
constexpr int64_t kStageBytes = int64_t{4} << 20;

int64_t attribute(int ordinal, cudaDeviceAttr which) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, ordinal), "properties of a CUDA device");
  return value;
}

Facts facts_at(int ordinal) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, ordinal), "properties of a CUDA device");
  std::string uuid;
  for (const char byte : properties.uuid.bytes) uuid += format("{:02x}", static_cast<unsigned char>(byte));
  char pci_bus_id[32] = {};
  check(cudaDeviceGetPCIBusId(pci_bus_id, sizeof(pci_bus_id), ordinal), "properties of a CUDA device");
  return {.ordinal = ordinal,
          .name = properties.name,
          .pci_bus_id = pci_bus_id,
          .uuid = uuid,
          .multiprocessors = static_cast<int>(attribute(ordinal, cudaDevAttrMultiProcessorCount)),
          .capability = static_cast<int>(10 * attribute(ordinal, cudaDevAttrComputeCapabilityMajor) +
                                         attribute(ordinal, cudaDevAttrComputeCapabilityMinor)),
          .shared_per_block = attribute(ordinal, cudaDevAttrMaxSharedMemoryPerBlockOptin),
          .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem)};
}

class CudaDevice final : public Device {
 public:
  /// `direct`: copies from and to host memory are blocking and not staged.
  CudaDevice(Facts facts, int host_threads, std::shared_ptr<Libraries> libraries, bool direct = false)
      : Device(std::move(facts), false, host_threads, std::move(libraries)), pool_(host_threads), direct_(direct) {
    activate();
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "compute stream");
    check(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "copy stream");
    for (Stage& stage : stages_) {
      if (direct_) break;
      check(cudaMallocHost(reinterpret_cast<void**>(&stage.memory), kStageBytes), "pinned host memory");
      check(cudaEventCreateWithFlags(&stage.done, cudaEventDisableTiming), "event");
    }
  }
  ~CudaDevice() override {
    cudaSetDevice(gpu().ordinal);
    cudaStreamSynchronize(stream_);
    for (const Stage& stage : stages_) {
      if (direct_) break;
      cudaEventDestroy(stage.done);
      cudaFreeHost(stage.memory);
    }
    cudaStreamDestroy(copies_);
    cudaStreamDestroy(stream_);
  }

  cudaStream_t stream() const { return stream_; }
  ThreadPool& host_pool() override { return pool_; }
  void synchronize() override { check(cudaStreamSynchronize(stream_), "CUDA device"); }
  std::unique_ptr<Mirror> make_mirror() override { return cuda::make_mirror(gpu().ordinal, stream_, copies_); }
  std::unique_ptr<Graph> record(const std::function<void()>& work) override { return capture(stream_, work); }

 private:
  struct Stage {
    std::byte* memory = nullptr;
    cudaEvent_t done = nullptr;  // completes with the last copy that used the buffer
  };

  void activate() const { check(cudaSetDevice(gpu().ordinal), "selecting the CUDA device"); }
  /// Copies in chunks, so that a short copy on another stream does not wait for a long copy.
  void copy_directly(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, const char* what) {
    constexpr int64_t kPiece = int64_t{64} << 20;
    for (int64_t at = 0; at < bytes; at += kPiece)
      check(cudaMemcpyAsync(static_cast<std::byte*>(to) + at, static_cast<const std::byte*>(from) + at,
                            static_cast<size_t>(std::min(kPiece, bytes - at)), kind, stream_),
            what);
    synchronize();
  }
  Stage& next_stage() {
    Stage& stage = stages_[next_stage_++ % kStages];
    check(cudaEventSynchronize(stage.done), "CUDA device");
    return stage;
  }

  std::byte* allocate_impl(const std::string&, int64_t bytes) override {
    activate();
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, static_cast<size_t>(bytes));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // clears the error, so that later calls do not report it
      return nullptr;
    }
    check(status, "device memory");
    clear_impl(static_cast<std::byte*>(memory), bytes);
    return static_cast<std::byte*>(memory);
  }
  void release_impl(std::byte* memory, int64_t) noexcept override {
    cudaSetDevice(gpu().ordinal);
    cudaStreamSynchronize(stream_);
    cudaFree(memory);
  }
  void clear_impl(std::byte* to, int64_t bytes) override {
    check(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), stream_), "clearing device memory");
  }
  void copy_rows_impl(std::byte* to, int64_t to_pitch, const std::byte* from, int64_t from_pitch, int64_t rows,
                      int64_t width) override {
    const auto bytes = static_cast<size_t>(width);
    if (rows == 1 || (to_pitch == width && from_pitch == width)) {
      check(cudaMemcpyAsync(to, from, static_cast<size_t>(rows) * bytes, cudaMemcpyDeviceToDevice, stream_),
            "copy in device memory");
    } else {
      check(cudaMemcpy2DAsync(to, static_cast<size_t>(to_pitch), from, static_cast<size_t>(from_pitch), bytes,
                              static_cast<size_t>(rows), cudaMemcpyDeviceToDevice, stream_),
            "copy in device memory");
    }
  }

  void to_device_impl(std::byte* to, const void* from, int64_t bytes) override {
    activate();
    if (direct_) return copy_directly(to, from, bytes, cudaMemcpyHostToDevice, "copy to the device");
    for (int64_t at = 0; at < bytes; at += kStageBytes) {
      const auto n = static_cast<size_t>(std::min(kStageBytes, bytes - at));
      Stage& stage = next_stage();
      std::memcpy(stage.memory, static_cast<const std::byte*>(from) + at, n);
      check(cudaMemcpyAsync(to + at, stage.memory, n, cudaMemcpyHostToDevice, stream_), "copy to the device");
      check(cudaEventRecord(stage.done, stream_), "event");
    }
  }

  void to_host_impl(void* to, const std::byte* from, int64_t bytes) override {
    activate();
    if (direct_) return copy_directly(to, from, bytes, cudaMemcpyDeviceToHost, "copy to the host");
    const int64_t chunks = (bytes + kStageBytes - 1) / kStageBytes;
    std::array<Stage*, kStages> in_flight{};
    // Iteration i copies chunk i − kStages + 1 out of its buffer and starts chunk i.
    for (int64_t i = 0; i < chunks + kStages - 1; ++i) {
      if (const int64_t done = i - kStages + 1; done >= 0) {
        const Stage& stage = *in_flight[static_cast<size_t>(done % kStages)];
        check(cudaEventSynchronize(stage.done), "CUDA device");
        const int64_t at = done * kStageBytes;
        std::memcpy(static_cast<std::byte*>(to) + at, stage.memory,
                    static_cast<size_t>(std::min(kStageBytes, bytes - at)));
      }
      if (i < chunks) {
        Stage& stage = next_stage();
        in_flight[static_cast<size_t>(i % kStages)] = &stage;
        const int64_t at = i * kStageBytes;
        check(cudaMemcpyAsync(stage.memory, from + at, static_cast<size_t>(std::min(kStageBytes, bytes - at)),
                              cudaMemcpyDeviceToHost, stream_),
              "copy to the host");
        check(cudaEventRecord(stage.done, stream_), "event");
      }
    }
  }

  ThreadPool pool_;
  const bool direct_;
  cudaStream_t stream_ = nullptr, copies_ = nullptr;
  std::array<Stage, kStages> stages_;
  size_t next_stage_ = 0;
};

int device_count(std::string& reason) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  reason =
      format("no CUDA device: {}", status == cudaSuccess ? "the driver reports no device" : cudaGetErrorString(status));
  return 0;
}

}  // namespace

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess)
    throw Error(Code::device, format("{}: {} ({})", what, cudaGetErrorName(status), cudaGetErrorString(status)));
}

cudaStream_t stream_of(Device& device) {
  TRAINER_CHECK(device.kind() == DeviceKind::cuda && !device.dry(), "only a CUDA device has streams");
  return static_cast<CudaDevice&>(device).stream();
}

std::unique_ptr<Event> make_event(Device& device) {
  class CudaEvent final : public Event {
   public:
    CudaEvent(int ordinal, cudaStream_t stream) : ordinal_(ordinal), stream_(stream) {
      check(cudaSetDevice(ordinal_), "selecting the CUDA device");
      check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "event");
    }
    ~CudaEvent() override {
      cudaSetDevice(ordinal_);
      cudaEventDestroy(event_);
    }
    void set() override { check(cudaEventRecord(event_, stream_), "event"); }
    void wait() override {
      check(cudaSetDevice(ordinal_), "selecting the CUDA device");
      check(cudaEventSynchronize(event_), "CUDA device");
    }

   private:
    int ordinal_;
    cudaStream_t stream_;
    cudaEvent_t event_ = nullptr;
  };
  return std::make_unique<CudaEvent>(device.gpu().ordinal, stream_of(device));
}

std::unique_ptr<Device> make_stream(Device& device, bool staged) {
  return std::make_unique<CudaDevice>(device.gpu(), /*host_threads=*/1, device.libraries(), /*direct=*/!staged);
}

std::optional<std::string> version() { return format("CUDA {}.{}", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10); }

std::vector<Facts> devices() {
  std::string reason;
  std::vector<Facts> found;
  for (int i = 0, count = device_count(reason); i < count; ++i) found.push_back(facts_at(i));
  return found;
}

std::string no_device_reason() {
  std::string reason;
  device_count(reason);
  return reason;
}

int64_t free_memory(int ordinal) {
  size_t free_bytes = 0, total = 0;
  check(cudaSetDevice(ordinal), "selecting the CUDA device");
  check(cudaMemGetInfo(&free_bytes, &total), "free device memory");
  return static_cast<int64_t>(free_bytes);
}

std::unique_ptr<Device> make_device(int ordinal, int host_threads, std::shared_ptr<Libraries> libraries) {
  std::string reason;
  const int count = device_count(reason);
  if (count == 0) throw Error(Code::usage, reason);
  if (ordinal < 0 || ordinal >= count)
    throw Error(Code::usage, format("CUDA device {} not found: the driver lists {}", ordinal, count));
  return std::make_unique<CudaDevice>(facts_at(ordinal), host_threads, std::move(libraries));
}

}  // namespace trainer::device::cuda
