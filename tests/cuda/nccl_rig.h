#pragma once
// Ranks with NCCL for tests: threads, each with its own device.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/nccl/nccl_world.h"
#include "device/cuda/cuda_device.h"
#include "nccl.h"
#include "tensor/buffer.h"
#include "unit/comm/rig.h"

namespace trainer::comm {

/// A rank with its own device and NCCL.
struct GpuRank {
  explicit GpuRank(World& below)
      : device(device::cuda::make_device(below.rank(), 1)), world(nccl::make_world(below, *device)) {}
  std::unique_ptr<device::Device> device;
  std::unique_ptr<World> world;
  Arena arena{*device, Arena::Mode::heap};
  Meter meter;
  Exec ex{*device, arena, meter};
};

inline void on_gpus(int ranks, const WorldOptions& options, const std::function<void(World&, GpuRank&)>& body) {
  emulator::set_devices(ranks);
  run_on_threads(ranks, options, [&](World& below) {
    GpuRank rank(below);
    body(below, rank);
  });
  EXPECT_EQ(emulator::live_nccl_communicators(), 0);
}

inline Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(Code::internal, "");
}
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Data in the memory of a rank's device.
template <typename T>
struct OnGpu {
  OnGpu(GpuRank& rank, const std::vector<T>& data)
      : device(*rank.device),
        memory(device, "test", {std::max<int64_t>(1, static_cast<int64_t>(data.size()))}, DTypeOf<T>::value),
        n(static_cast<int64_t>(data.size())) {
    device.copy_to_device(memory.tensor().data, data.data(), n * static_cast<int64_t>(sizeof(T)));
  }
  Tensor all() const { return memory.tensor().range(0, n); }
  Tensor part(Chunk chunk) const { return memory.tensor().range(chunk.begin, chunk.count); }
  std::vector<T> get() {
    std::vector<T> data(static_cast<size_t>(n));
    device.copy_to_host(data.data(), memory.tensor().data, n * static_cast<int64_t>(sizeof(T)));
    return data;
  }
  device::Device& device;
  Buffer memory;
  int64_t n;
};

}  // namespace trainer::comm
