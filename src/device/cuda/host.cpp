// The host of a CUDA device as a device: a CPU whose memory is pinned, so that copies to and from the GPU go at the
// speed of the link, beside kernels.
#include <cstring>
#include <set>

#include "base/log.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/runtime.h"

namespace trainer::device::cuda {
namespace {

constexpr int64_t kLarge = int64_t{2} << 20;  // on pages of its own

/// Large blocks are those of a CPU device, touched by its threads and then registered; small ones come from the
/// runtime. Where the system pins no more, memory stays pageable: the same results, slower copies.
class PinnedHost final : public Device {
 public:
  PinnedHost(int ordinal, int threads)
      : Device(Kind::cpu, false, threads, detect_isa()), ordinal_(ordinal), cpu_(threads) {}
  ThreadPool& host_pool() override { return cpu_.host_pool(); }

 private:
  std::byte* allocate_impl(int64_t bytes) override {
    check(cudaSetDevice(ordinal_), "choice of the CUDA device");
    if (bytes < kLarge) {
      void* memory = nullptr;
      if (cudaMallocHost(&memory, static_cast<size_t>(bytes)) != cudaSuccess) {
        cudaGetLastError();
        return nullptr;
      }
      std::memset(memory, 0, static_cast<size_t>(bytes));
      return static_cast<std::byte*>(memory);
    }
    std::byte* const memory = cpu_.allocate("pinned", bytes);
    if (cudaHostRegister(memory, static_cast<size_t>(bytes), cudaHostRegisterPortable) == cudaSuccess) {
      registered_.insert(memory);
    } else {
      const cudaError_t reason = cudaGetLastError();
      if (!told_)
        log::warning("{} of host memory could not be pinned ({}): copies to the GPU are slower",
                     format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20)), cudaGetErrorString(reason));
      told_ = true;
    }
    return memory;
  }
  void release_impl(std::byte* memory, int64_t bytes) noexcept override {
    cudaSetDevice(ordinal_);
    if (bytes < kLarge) {
      cudaFreeHost(memory);
      return;
    }
    if (registered_.erase(memory) > 0) cudaHostUnregister(memory);
    cpu_.release("pinned", memory, bytes);
  }
  void to_host_impl(void* to, const std::byte* from, int64_t bytes) override { cpu_.copy_to_host(to, from, bytes); }
  void to_device_impl(std::byte* to, const void* from, int64_t bytes) override { cpu_.copy_to_device(to, from, bytes); }
  void copy_rows_impl(std::byte* to, int64_t to_pitch, const std::byte* from, int64_t from_pitch, int64_t rows,
                      int64_t width) override {
    cpu_.copy_rows(to, to_pitch, from, from_pitch, rows, width);
  }
  void clear_impl(std::byte* to, int64_t bytes) override { cpu_.clear(to, bytes); }

  int ordinal_;
  CpuDevice cpu_;
  std::set<std::byte*> registered_;
  bool told_ = false;
};

}  // namespace

std::unique_ptr<Device> make_host(const Device& device) {
  return std::make_unique<PinnedHost>(device.gpu().ordinal, device.threads());
}

}  // namespace trainer::device::cuda
