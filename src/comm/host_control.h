#pragma once
// Control over a communicator of all ranks.
#include <memory>

#include "comm/world.h"

namespace trainer::comm {

/// Returns the group of all ranks, for host data.
Group control_group(int rank, int size);

class HostControl final : public Control {
 public:
  /// `make` creates the communicator; its staging memory is on the device that this object passes to `make`.
  HostControl(const std::function<std::unique_ptr<Communicator>(device::Device&)>& make);

  void barrier() override;
  void broadcast(std::string& bytes, int root) override;
  std::vector<std::string> gather(const std::string& bytes) override;
  void sum(std::span<double> values) override;

 private:
  /// Returns memory of the device for a message: unlike the caller's memory, it outlives messages that are in flight
  /// when an operation fails (Engine::start).
  Scratch take(size_t count, DType dtype);

  device::CpuDevice device_{1};
  Arena arena_{device_, Arena::Mode::heap};
  Meter meter_;
  Exec ex_{device_, arena_, meter_};
  std::unique_ptr<Communicator> all_;
};

}  // namespace trainer::comm
