#pragma once
// HostCopy: a tensor's elements where host code can touch them: the tensor itself on a CPU; on any other device a copy,
// in memory that is kept for the next one.
#include <vector>

#include "device/device.h"
#include "tensor/tensor.h"

namespace trainer {

class HostCopy {
 public:
  HostCopy() = default;
  /// As get().
  HostCopy(device::Device& device, const Tensor& tensor) { get(device, tensor); }

  /// The packed `tensor` as it is after what was run before; valid until the next get().
  const Tensor& get(device::Device& device, const Tensor& tensor);
  const Tensor& tensor() const { return here_; }
  /// What was written to tensor() goes to the device.
  void put();

 private:
  device::Device* device_ = nullptr;
  Tensor there_, here_;
  std::vector<std::byte> memory_;
};

}  // namespace trainer
