#pragma once
// Staged: an operation on device memory by way of the host, for transports that see host memory only. Neither host nor
// compute stream waits when it is started; the host does when it is joined.
#include <memory>

#include "comm/communicator.h"

namespace trainer::comm {

class Staged final : public Pending {
 public:
  explicit Staged(device::Device& device) : mirror_(device.make_mirror()) {}
  bool is_busy() const { return busy_; }
  /// Starts copying `in` to the host, and replaces both operands by their host copies. They keep their places in each
  /// other.
  const device::Mirror* stage(Tensor& in, Tensor& out);
  /// What runs on the copies; the result goes to the device when it is waited for.
  void follow(Pending* operation) { operation_ = operation; }
  void wait() override;
  void abandon() noexcept override;

 private:
  std::unique_ptr<device::Mirror> mirror_;
  Pending* operation_ = nullptr;
  Tensor out_;
  int64_t result_ = 0;  // its place in the mirror
  bool busy_ = false;
};

}  // namespace trainer::comm
