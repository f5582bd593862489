#pragma once
// Staged: an operation on device memory that is copied through the host, for transports that support host memory only.
// Starting it blocks neither the host nor the compute stream; the host blocks when it is joined.
#include <memory>

#include "comm/communicator.h"

namespace trainer::comm {

class Staged final : public Pending {
 public:
  explicit Staged(device::Device& device) : mirror_(device.make_mirror()) {}
  bool is_busy() const { return busy_; }
  /// Starts copying `in` to the host, and replaces both operands by their host copies, which overlap in the same way.
  const device::Mirror* stage(Tensor& in, Tensor& out);
  /// Sets the operation that runs on the copies. Waiting for it copies the result to the device.
  void follow(Pending* operation) { operation_ = operation; }
  Interval wait() override;
  void abandon() noexcept override;

 private:
  std::unique_ptr<device::Mirror> mirror_;
  Pending* operation_ = nullptr;
  Tensor out_;
  int64_t result_ = 0;  // the result's offset in the mirror
  bool busy_ = false;
};

}  // namespace trainer::comm
