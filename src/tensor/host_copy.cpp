#include "tensor/host_copy.h"

namespace trainer {

const Tensor& HostCopy::get(device::Device& device, const Tensor& tensor) {
  TRAINER_CHECK(tensor.packed(), "a host copy requires a packed tensor, not rows of {1} elements at a pitch of {0}",
                tensor.ld(), tensor.cols());
  device_ = &device;
  there_ = here_ = tensor;
  if (device.kind() == device::DeviceKind::cpu || device.dry()) return here_;
  memory_.resize(static_cast<size_t>(tensor.bytes()));
  device.copy_to_host(memory_.data(), tensor.data, tensor.bytes());
  here_.data = memory_.data();
  return here_;
}

void HostCopy::put() {
  if (here_.data != there_.data) device_->copy_to_device(there_.data, here_.data, there_.bytes());
}

}  // namespace trainer
