#include "device/device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/shape.h"
#include "base/units.h"
#include "device/pages.h"

namespace trainer::device {

std::byte* Device::allocate(const std::string& category, int64_t bytes) {
  TRAINER_CHECK(bytes >= 0, "{} bytes of {}", bytes, category);
  std::byte* memory = bytes == 0 ? nullptr : allocate_impl(category, bytes);
  if (memory == nullptr && bytes != 0 && !dry_) {
    const bool trains = memory_.contains("gradients") || memory_.contains("optimizer");
    const std::string_view advice = category == "kv_cache" ? "lower --batch-size"
                                    : trains
                                        ? "lower train.micro_batch or model.seq_len, or set train.recompute = \"full\""
                                        : "split the model over more ranks";
    throw Error(Code::plan, format("out of memory: {} needs {} more, and {} are in use already; {}", category,
                                   format_bytes(bytes), format_bytes(memory_total()), advice));
  }
  MemoryUse& use = memory_[category];
  use.current += bytes;
  use.peak = std::max(use.peak, use.current);
  return memory;
}

void Device::release(const std::string& category, std::byte* memory, int64_t bytes) noexcept {
  if (memory != nullptr) release_impl(memory, bytes);
  if (const auto it = memory_.find(category); it != memory_.end()) it->second.current -= bytes;
}

int64_t Device::memory_total() const {
  int64_t total = 0;
  for (const auto& [category, use] : memory_) total += use.current;
  return total;
}

const cuda::Facts& Device::gpu() const {
  TRAINER_CHECK(kind_ == DeviceKind::cuda, "only a CUDA device has GPU properties");
  return gpu_;
}

ThreadPool& Device::host_pool() { check_failed("host_pool()", "a dry device has no threads", std::source_location()); }

std::unique_ptr<Mirror> Device::make_mirror() {
  check_failed("make_mirror()", "only a GPU has mirrors", std::source_location());
}
std::unique_ptr<Graph> Device::record(const std::function<void()>&) {
  check_failed("record()", "only a GPU has graphs", std::source_location());
}

void Device::copy_to_host(void* to, const std::byte* from, int64_t bytes) {
  if (!dry_ && bytes > 0) to_host_impl(to, from, bytes);
}
void Device::copy_to_device(std::byte* to, const void* from, int64_t bytes) {
  if (!dry_ && bytes > 0) to_device_impl(to, from, bytes);
}
void Device::copy_rows(std::byte* to, int64_t to_pitch, const std::byte* from, int64_t from_pitch, int64_t rows,
                       int64_t width) {
  if (!dry_ && rows > 0 && width > 0) copy_rows_impl(to, to_pitch, from, from_pitch, rows, width);
}
void Device::clear(std::byte* to, int64_t bytes) {
  if (!dry_ && bytes > 0) clear_impl(to, bytes);
}

CpuDevice::CpuDevice(int threads, Isa isa) : Device(DeviceKind::cpu, false, threads, isa), pool_(threads) {}

std::byte* CpuDevice::allocate_impl(const std::string& category, int64_t bytes) {
  if (bytes < kHugePage) {
    void* memory = std::aligned_alloc(64, static_cast<size_t>(round_up(bytes, 64)));
    if (memory != nullptr) std::memset(memory, 0, static_cast<size_t>(bytes));
    return static_cast<std::byte*>(memory);
  }
  const bool now = category != kMessageMemory;
  std::byte* const memory = map_pages(bytes, /*huge=*/now);
  if (memory != nullptr && now) touch_pages(pool_, memory, bytes);
  return memory;
}

void CpuDevice::release_impl(std::byte* memory, int64_t bytes) noexcept {
  if (keeps_memory()) return;
  if (bytes < kHugePage) {
    std::free(memory);
  } else {
    unmap_pages(memory, bytes);
  }
}

void CpuDevice::to_host_impl(void* to, const std::byte* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
void CpuDevice::to_device_impl(std::byte* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
void CpuDevice::clear_impl(std::byte* to, int64_t bytes) { std::memset(to, 0, static_cast<size_t>(bytes)); }

void CpuDevice::copy_rows_impl(std::byte* to, int64_t to_pitch, const std::byte* from, int64_t from_pitch, int64_t rows,
                               int64_t width) {
  constexpr int64_t kTaskBytes = 1 << 18;
  const int64_t per_task = std::max<int64_t>(1, kTaskBytes / width);
  pool_.parallel_for(divide_up(rows, per_task), [&](int64_t task) {
    const int64_t begin = task * per_task, end = std::min(rows, begin + per_task);
    for (int64_t row = begin; row < end; ++row)
      std::memcpy(to + row * to_pitch, from + row * from_pitch, static_cast<size_t>(width));
  });
}

std::unique_ptr<Device> make_dry(const Device& device) {
  if (device.kind() == DeviceKind::cuda)
    return std::make_unique<DryDevice>(device.gpu(), device.threads(), device.libraries());
  return std::make_unique<DryDevice>(device.threads(), device.isa());
}

ThreadPool& pool_of(Device& device) {
  TRAINER_CHECK(device.kind() == DeviceKind::cpu && !device.dry(), "CPU kernels run on a CPU device that is not dry");
  return device.host_pool();
}

}  // namespace trainer::device
