#pragma once
// The interface of CUDA devices to the rest of the program, without CUDA's headers. In builds without CUDA there are no
// devices, and no_device_reason() says so.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/numa.h"
#include "device/stream.h"

namespace trainer::device::cuda {

/// Returns the version of the toolkit this program was built with, such as "CUDA 13.0"; none without CUDA.
std::optional<std::string> version();
/// Returns the devices this process may use; empty without CUDA, without a driver, or without a GPU.
std::vector<Facts> devices();
/// Returns why there are no devices: "this trainer was built without CUDA (configure it with …)", "no CUDA device: …".
std::string no_device_reason();

/// Returns the free memory of device `ordinal`, in bytes.
int64_t free_memory(int ordinal);

/// Creates a device with one compute stream on device `ordinal`, and with `host_threads` threads for the rank's work on
/// the host. Throws Code::usage if the device does not exist, Code::device if it cannot be used.
std::unique_ptr<Device> make_device(int ordinal, int host_threads,
                                    std::shared_ptr<Libraries> libraries = std::make_shared<Libraries>());

/// The functions of device/stream.h for CUDA devices. Unless `staged`, a queue copies from and to host memory directly,
/// at link speed if that memory is pinned. Large blocks of host memory are allocated on the GPU's NUMA node.
std::unique_ptr<Event> make_event(Device& device);
std::unique_ptr<Device> make_stream(Device& device, bool staged);
std::unique_ptr<Device> make_host(const Device& device, bool pinned, std::unique_ptr<MemoryNodes> nodes);
/// Returns the kind of the memory of a host that make_host() created.
HostMemory memory_of(Device& host);

}  // namespace trainer::device::cuda
