// The host of a CUDA device, as a CPU device whose memory is pinned and on the GPU's NUMA node, so that copies run at
// link speed and overlap with kernels.
#include <algorithm>
#include <cstring>
#include <map>

#include "base/log.h"
#include "base/units.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/runtime.h"
#include "device/pages.h"

namespace trainer::device::cuda {
namespace {

constexpr const char* kPinAdvice = "; check the limit on pinned memory (ulimit -l)";
constexpr int64_t kPiece = int64_t{4} << 30;    // bytes per registration
constexpr int64_t kStages = int64_t{64} << 20;  // bytes of the pinned buffers through which pageable memory is copied

/// The way in which a block was allocated. If one fails, the next is tried:
///   registered  huge pages of the GPU's NUMA node, touched by the host's threads, then pinned; for large blocks
///   runtime     allocated and pinned by CUDA
///   pageable    large blocks: the same pages, not pinned
///   plain       small blocks: allocated by a CPU device
/// All ways give the same results, but copies of pageable memory are slower.
enum class Origin : uint8_t { registered, runtime, pageable, plain };

class PinnedHost final : public Device {
 public:
  PinnedHost(const Facts& gpu, int threads, bool pinned, std::unique_ptr<MemoryNodes> nodes)
      : Device(DeviceKind::cpu, false, threads, detect_isa()),
        ordinal_(gpu.ordinal),
        pins_(pinned),
        cpu_(threads),
        nodes_(std::move(nodes)) {
    if (nodes_->count() < 2) return;
    node_ = nodes_->node_near(gpu.pci_bus_id);
    if (node_) {
      log::info("host memory for {} comes from NUMA node {}", gpu.name, *node_);
    } else {
      log::info("the NUMA node of {} is unknown: host memory comes from any node", gpu.name);
    }
  }
  ThreadPool& host_pool() override { return cpu_.host_pool(); }

  HostMemory memory_kind() {
    const auto pinned = [](const auto& block) {
      return block.second == Origin::registered || block.second == Origin::runtime;
    };
    if (std::ranges::all_of(blocks_, pinned)) return HostMemory::pinned;
    void* stages = nullptr;
    check(cudaSetDevice(ordinal_), "selecting the CUDA device");
    if (cudaMallocHost(&stages, kStages) != cudaSuccess) {
      cudaGetLastError();
      return HostMemory::pageable;
    }
    cudaFreeHost(stages);
    return HostMemory::staged;
  }

 private:
  std::byte* allocate_impl(const std::string&, int64_t bytes) override {
    check(cudaSetDevice(ordinal_), "selecting the CUDA device");
    const bool large = bytes >= kHugePage;
    if (pins_ && large) {
      std::byte* const memory = pages(bytes);
      if (memory == nullptr) return nullptr;
      if (pin(memory, bytes)) return keep(memory, Origin::registered);
      unmap_pages(memory, bytes);
    }
    if (void* memory = nullptr; pins_ && cudaMallocHost(&memory, static_cast<size_t>(bytes)) == cudaSuccess) {
      std::memset(memory, 0, static_cast<size_t>(bytes));
      return keep(static_cast<std::byte*>(memory), Origin::runtime);
    }
    if (pins_) tell("is pageable", bytes, cudaGetErrorString(cudaGetLastError()));
    if (!large) return keep(cpu_.allocate("host", bytes), Origin::plain);
    std::byte* const memory = pages(bytes);
    return memory == nullptr ? nullptr : keep(memory, Origin::pageable);
  }
  /// Maps pages on the GPU's NUMA node and touches them. Returns nullptr if the system is out of memory.
  std::byte* pages(int64_t bytes) {
    std::byte* const memory = map_pages(bytes);
    if (memory == nullptr) return nullptr;
    if (node_) {
      if (const std::string why = nodes_->prefer(memory, bytes, *node_); !why.empty())
        tell("may be on a different NUMA node than the GPU", bytes, why, "");
    }
    touch_pages(host_pool(), memory, bytes);
    return memory;
  }
  std::byte* keep(std::byte* memory, Origin origin) {
    blocks_[memory] = origin;
    return memory;
  }
  /// Pins the whole block; if that fails, pins nothing and returns false.
  bool pin(std::byte* memory, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += kPiece) {
      const auto size = static_cast<size_t>(std::min(kPiece, bytes - at));
      const cudaError_t status = cudaHostRegister(memory + at, size, cudaHostRegisterPortable);
      if (status == cudaSuccess) continue;
      cudaGetLastError();
      for (int64_t done = 0; done < at; done += kPiece) cudaHostUnregister(memory + done);
      tell("could not be pinned", bytes, cudaGetErrorString(status));
      return false;
    }
    return true;
  }
  /// Warns once per kind of problem.
  void tell(const std::string& what, int64_t bytes, const std::string& reason, const char* advice = kPinAdvice) {
    if (std::exchange(reported_[what], true)) return;
    log::warning("{} of host memory {} ({}): copies to the GPU may be slower{}", format_bytes(bytes), what, reason,
                 advice);
  }
  void release_impl(std::byte* memory, int64_t bytes) noexcept override {
    cudaSetDevice(ordinal_);
    switch (blocks_.extract(memory).mapped()) {
      case Origin::runtime:
        cudaFreeHost(memory);
        return;
      case Origin::plain:
        cpu_.release("host", memory, bytes);
        return;
      case Origin::registered:
        for (int64_t at = 0; at < bytes; at += kPiece) cudaHostUnregister(memory + at);
        break;
      case Origin::pageable:
        break;
    }
    unmap_pages(memory, bytes);
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
  std::unique_ptr<MemoryNodes> nodes_;
  std::optional<int> node_;  // the GPU's NUMA node; empty: unknown, or the host has only one
  std::map<std::byte*, Origin> blocks_;
  std::map<std::string, bool> reported_;
};

}  // namespace

std::unique_ptr<Device> make_host(const Device& device, bool pinned, std::unique_ptr<MemoryNodes> nodes) {
  return std::make_unique<PinnedHost>(device.gpu(), device.threads(), pinned, std::move(nodes));
}

HostMemory memory_of(Device& host) { return dynamic_cast<PinnedHost&>(host).memory_kind(); }

}  // namespace trainer::device::cuda
