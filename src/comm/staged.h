#pragma once
// Staged: an operation on device memory by way of the host, for transports that see host memory only.
#include <vector>

#include "comm/communicator.h"

namespace trainer::comm {

class Staged final : public Pending {
 public:
  bool busy() const { return device_ != nullptr; }
  /// Copies `in` to the host, after what was run before on the device, and replaces both operands by their host copies.
  /// They keep their places in each other.
  void stage(device::Device& device, Tensor& in, Tensor& out);
  /// What runs on the copies; the result goes to the device when it is waited for.
  void follow(Pending* operation) { operation_ = operation; }
  void wait() override;
  void abandon() noexcept override;

 private:
  device::Device* device_ = nullptr;
  Pending* operation_ = nullptr;
  Tensor out_;
  std::byte* result_ = nullptr;
  std::vector<std::byte> memory_;
};

}  // namespace trainer::comm
