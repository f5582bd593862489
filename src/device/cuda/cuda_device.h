#pragma once
// CUDA devices as the rest of the program sees them, without CUDA's headers. A program built without CUDA has none;
// no_device_reason() returns why.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/lane.h"
#include "device/numa.h"

namespace trainer::device::cuda {

/// Returns the version of the toolkit this program was built with, such as "CUDA 13.0"; none without CUDA.
std::optional<std::string> version();
/// Returns the devices this process may use; empty without CUDA, without a driver, or without a GPU.
std::vector<Facts> devices();
/// Returns why there are no devices: "this trainer was built without CUDA (TRAINER_CUDA=ON adds it)", "no CUDA device:
/// …".
std::string no_device_reason();

/// Returns the free memory of device `ordinal`, in bytes.
int64_t free_memory(int ordinal);

/// Makes a device with one compute stream on device `ordinal` and `host_threads` threads for the rank's work on the
/// host. Throws Code::usage if the device does not exist, Code::device if it cannot be used.
std::unique_ptr<Device> make_device(int ordinal, int host_threads,
                                    std::shared_ptr<Libraries> libraries = std::make_shared<Libraries>());

/// The make functions of device/lane.h for a CUDA device. Unless staged, a queue copies from and to host memory
/// directly, at link speed if that memory is pinned. Large blocks of host memory are allocated on the GPU's NUMA node.
std::unique_ptr<Mark> make_mark(Device& device);
std::unique_ptr<Device> make_lane(Device& device, bool staged);
std::unique_ptr<Device> make_host(const Device& device, bool pinned, std::unique_ptr<MemoryNodes> nodes);
/// Returns the kind of memory of a host made by make_host().
HostMemory memory_of(Device& host);

}  // namespace trainer::device::cuda
