// The host of a CUDA device as a device: a CPU whose memory is pinned, so that copies to and from the GPU go at the
// speed of the link, beside kernels.
#include <algorithm>
#include <cstring>
#include <map>

#include "base/log.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/runtime.h"

namespace trainer::device::cuda {
namespace {

constexpr int64_t kLarge = int64_t{2} << 20;    // on pages of its own
constexpr int64_t kPiece = int64_t{4} << 30;    // of one registration
constexpr int64_t kStages = int64_t{64} << 20;  // what the lanes pin for copies of pageable memory

/// Where a block is from. Each is tried when the one before it fails:
///   registered  a CPU device's: huge pages, touched by its threads, then pinned
///   runtime     allocated and pinned by CUDA, exactly as large
///   pageable    a CPU device's
/// Results are the same; copies of pageable memory are slower.
enum class Origin : uint8_t { registered, runtime, pageable };

class PinnedHost final : public Device {
 public:
  PinnedHost(int ordinal, int threads, bool pinned)
      : Device(Kind::cpu, false, threads, detect_isa()), ordinal_(ordinal), pins_(pinned), cpu_(threads) {}
  ThreadPool& host_pool() override { return cpu_.host_pool(); }

  HostMemory memory_kind() {
    if (std::ranges::none_of(blocks_, [](const auto& block) { return block.second == Origin::pageable; }))
      return HostMemory::pinned;
    void* stages = nullptr;
    check(cudaSetDevice(ordinal_), "choice of the CUDA device");
    if (cudaMallocHost(&stages, kStages) != cudaSuccess) {
      cudaGetLastError();
      return HostMemory::pageable;
    }
    cudaFreeHost(stages);
    return HostMemory::staged;
  }

 private:
  std::byte* allocate_impl(int64_t bytes) override {
    check(cudaSetDevice(ordinal_), "choice of the CUDA device");
    if (pins_ && bytes >= kLarge) {
      std::byte* const memory = cpu_.allocate("host", bytes);
      if (pin(memory, bytes)) return keep(memory, Origin::registered);
      cpu_.release("host", memory, bytes);
    }
    if (void* memory = nullptr; pins_ && cudaMallocHost(&memory, static_cast<size_t>(bytes)) == cudaSuccess) {
      std::memset(memory, 0, static_cast<size_t>(bytes));
      return keep(static_cast<std::byte*>(memory), Origin::runtime);
    }
    if (pins_) tell("is pageable", bytes, cudaGetLastError());
    return keep(cpu_.allocate("host", bytes), Origin::pageable);
  }
  std::byte* keep(std::byte* memory, Origin origin) {
    blocks_[memory] = origin;
    return memory;
  }
  /// Pins all of a block, or nothing.
  bool pin(std::byte* memory, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += kPiece) {
      const auto size = static_cast<size_t>(std::min(kPiece, bytes - at));
      const cudaError_t status = cudaHostRegister(memory + at, size, cudaHostRegisterPortable);
      if (status == cudaSuccess) continue;
      cudaGetLastError();
      for (int64_t done = 0; done < at; done += kPiece) cudaHostUnregister(memory + done);
      tell("could not be pinned where it is", bytes, status);
      return false;
    }
    return true;
  }
  /// Once for each thing to tell.
  void tell(const std::string& what, int64_t bytes, cudaError_t reason) {
    if (std::exchange(told_[what], true)) return;
    log::warning("{} of host memory {} ({}): copies to the GPU may be slower; `ulimit -l` says how much may be pinned",
                 format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20)), what, cudaGetErrorString(reason));
  }
  void release_impl(std::byte* memory, int64_t bytes) noexcept override {
    cudaSetDevice(ordinal_);
    const auto block = blocks_.extract(memory);
    if (block.mapped() == Origin::runtime) {
      cudaFreeHost(memory);
      return;
    }
    if (block.mapped() == Origin::registered)
      for (int64_t at = 0; at < bytes; at += kPiece) cudaHostUnregister(memory + at);
    cpu_.release("host", memory, bytes);
  }
  void to_host_impl(void* to, const std::byte* from, int64_t bytes) override { cpu_.copy_to_host(to, from, bytes); }
  void to_device_impl(std::byte* to, const void* from, int64_t bytes) override { cpu_.copy_to_device(to, from, bytes); }
  void copy_rows_impl(std::byte* to, int64_t to_pitch, const std::byte* from, int64_t from_pitch, int64_t rows,
                      int64_t width) override {
    cpu_.copy_rows(to, to_pitch, from, from_pitch, rows, width);
  }
  void clear_impl(std::byte* to, int64_t bytes) override { cpu_.clear(to, bytes); }

  int ordinal_;
  bool pins_;
  CpuDevice cpu_;
  std::map<std::byte*, Origin> blocks_;
  std::map<std::string, bool> told_;
};

}  // namespace

std::unique_ptr<Device> make_host(const Device& device, bool pinned) {
  return std::make_unique<PinnedHost>(device.gpu().ordinal, device.threads(), pinned);
}

HostMemory memory_of(Device& host) { return dynamic_cast<PinnedHost&>(host).memory_kind(); }

}  // namespace trainer::device::cuda
