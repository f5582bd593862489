#pragma once
// CUDA devices as the rest of the program sees them, without CUDA's headers. In a program built without CUDA there are
// none, which `no_device_reason` reports.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/lane.h"
#include "device/numa.h"

namespace trainer::device::cuda {

/// "CUDA 13.0" of the toolkit this program was built with; none without CUDA.
std::optional<std::string> version();
/// The devices this process may use; none without CUDA, without a driver, or without a GPU.
std::vector<Facts> devices();
/// Returns why there are none: "this trainer was built without CUDA (TRAINER_CUDA=ON adds it)", "no CUDA device: …".
std::string no_device_reason();

/// Returns the free memory of device `ordinal`, in bytes.
int64_t free_memory(int ordinal);

/// Makes a device with one compute stream on device `ordinal` and `host_threads` threads for the rank's work on the
/// host. Throws Code::usage when the device does not exist, Code::device when it cannot be used.
std::unique_ptr<Device> make_device(int ordinal, int host_threads,
                                    std::shared_ptr<Libraries> libraries = std::make_shared<Libraries>());

/// The make functions of device/lane.h for a CUDA device. A queue copies from and to host memory directly, pinned
/// memory at link speed, unless it is to be staged. Large blocks of host memory come from the NUMA node of the GPU.
std::unique_ptr<Mark> make_mark(Device& device);
std::unique_ptr<Device> make_lane(Device& device, bool staged);
std::unique_ptr<Device> make_host(const Device& device, bool pinned, std::unique_ptr<MemoryNodes> nodes);
/// Returns the kind of memory of a host that make_host() made.
HostMemory memory_of(Device& host);

}  // namespace trainer::device::cuda
