#pragma once
// HostCopy: a tensor's elements where host code can access them: the tensor itself on a CPU, a copy on any other
// device. The memory of the copy is kept for the next one.
#include <vector>

#include "device/device.h"
#include "tensor/tensor.h"

namespace trainer {

class HostCopy {
 public:
  HostCopy() = default;
  /// Calls get().
  HostCopy(device::Device& device, const Tensor& tensor) { get(device, tensor); }

  /// Returns the packed `tensor` as left by the preceding operators; valid until the next get().
  const Tensor& get(device::Device& device, const Tensor& tensor);
  const Tensor& tensor() const { return here_; }
  /// Copies what was written to tensor() to the device.
  void put();

 private:
  device::Device* device_ = nullptr;
  Tensor there_, here_;
  std::vector<std::byte> memory_;
};

}  // namespace trainer
