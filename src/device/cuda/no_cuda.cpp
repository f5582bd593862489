// Compiled instead of the CUDA device in builds without CUDA.
#include "base/error.h"
#include "device/cuda/cuda_device.h"

namespace trainer::device::cuda {

std::optional<std::string> version() { return std::nullopt; }
std::vector<Facts> devices() { return {}; }
std::string no_device_reason() {
  return "this trainer was built without CUDA (configure it with -DTRAINER_CUDA=ON, which requires nvcc)";
}
int64_t free_memory(int) { return 0; }
std::unique_ptr<Device> make_device(int, int, std::shared_ptr<Libraries>) {
  throw Error(Code::usage, no_device_reason());
}

std::unique_ptr<Event> make_event(Device&) { throw Error(Code::usage, no_device_reason()); }
std::unique_ptr<Device> make_stream(Device&, bool) { throw Error(Code::usage, no_device_reason()); }
std::unique_ptr<Device> make_host(const Device&, bool, std::unique_ptr<MemoryNodes>) {
  throw Error(Code::usage, no_device_reason());
}
HostMemory memory_of(Device&) { throw Error(Code::usage, no_device_reason()); }

}  // namespace trainer::device::cuda
