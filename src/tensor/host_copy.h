#pragma once
// HostCopy gives host code access to a tensor's elements: to the tensor itself on a CPU, to a copy on any other device.
// The copy's memory is reused for the next copy.
#include <vector>

#include "device/device.h"
#include "tensor/tensor.h"

namespace trainer {

class HostCopy {
 public:
  HostCopy() = default;
  HostCopy(device::Device& device, const Tensor& tensor) { get(device, tensor); }

  /// Returns the elements of the packed `tensor` after all preceding operators; valid until the next get().
  const Tensor& get(device::Device& device, const Tensor& tensor);
  const Tensor& tensor() const { return here_; }
  /// Copies tensor(), which the caller has changed, back to the device.
  void put();

 private:
  device::Device* device_ = nullptr;
  Tensor there_, here_;
  std::vector<std::byte> memory_;
};

}  // namespace trainer
