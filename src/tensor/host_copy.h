#pragma once
// HostCopy: a tensor's elements where host code can touch them. On a CPU that is the tensor itself, on any other device
// a copy, in memory that is kept for the next one.
#include <vector>

#include "device/device.h"
#include "tensor/tensor.h"

namespace trainer {

class HostCopy {
 public:
  HostCopy() = default;
  /// Does what get() does.
  HostCopy(device::Device& device, const Tensor& tensor) { get(device, tensor); }

  /// Returns the packed `tensor` as the operators before have left it; valid until the next get().
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
