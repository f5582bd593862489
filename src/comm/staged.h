#pragma once
// Staged: an operation on device memory whose operands are copied through the host, for transports that support host
// memory only. Its start blocks neither the host nor the compute stream; the host blocks in join().
#include <memory>
#include <tuple>

#include "comm/communicator.h"
#include "device/pages.h"

namespace trainer::comm {

class Staged final : public Pending {
 public:
  explicit Staged(device::Device& device) : mirror_(device.make_mirror()) {}
  ~Staged() override {
    if (device::keeps_memory()) std::ignore = mirror_.release();
  }
  bool is_busy() const { return busy_; }
  /// Starts to copy `in` to the host, and replaces both operands with host copies that overlap in the same way. Returns
  /// the mirror to wait for; null if `in` is empty.
  const device::Mirror* stage(Tensor& in, Tensor& out);
  /// Sets the operation that runs on the host copies. wait() waits for it and copies the result to the device.
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
