#include "device/stream.h"

#include "base/error.h"
#include "device/cuda/cuda_device.h"

namespace trainer::device {

std::unique_ptr<Event> make_event(Device& device) {
  if (device.kind() == DeviceKind::cuda && !device.dry()) return cuda::make_event(device);
  return std::make_unique<Event>();
}

std::unique_ptr<Device> make_stream(Device& device, HostMemory memory) {
  TRAINER_CHECK(!device.dry(), "a dry device has no work queues");
  if (device.kind() == DeviceKind::cuda) return cuda::make_stream(device, memory == HostMemory::staged);
  return std::make_unique<CpuDevice>(1, device.isa());
}

std::unique_ptr<Device> make_host(const Device& device, bool pinned) {
  const Isa isa = device.kind() == DeviceKind::cuda ? detect_isa() : device.isa();
  if (device.dry()) return std::make_unique<DryDevice>(device.threads(), isa);
  if (device.kind() == DeviceKind::cuda) return cuda::make_host(device, pinned, memory_nodes());
  return std::make_unique<CpuDevice>(device.threads(), isa);
}

HostMemory memory_of(const Device& device, Device& host) {
  return device.kind() == DeviceKind::cuda && !device.dry() ? cuda::memory_of(host) : HostMemory::plain;
}

}  // namespace trainer::device
