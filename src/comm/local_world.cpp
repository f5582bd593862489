// Worlds without other ranks: a single rank, and the dry world that represents many.
#include "comm/collective.h"
#include "comm/world.h"
#include "tensor/buffer.h"

namespace trainer::comm {
namespace {

/// Completes operations in a group of one immediately; operations of larger groups are only counted.
class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(device::Device& device, Group group) : Communicator(std::move(group)) {
    if (size() > 1 && this->group().link == 0 && device.kind() == device::DeviceKind::cpu)
      staging_ = Buffer(device, device::kMessageMemory, {kStagingBytes}, DType::u8);
  }

 private:
  Pending* start(const Request&) override { return nullptr; }
  Buffer staging_;
};

/// Returns this rank's data in place of every rank's.
class LocalControl final : public Control {
 public:
  explicit LocalControl(int size) : size_(size) {}
  void barrier() override {}
  void broadcast(std::string&, int) override {}
  std::vector<std::string> gather(const std::string& bytes) override {
    return std::vector<std::string>(static_cast<size_t>(size_), bytes);
  }
  void sum(std::span<double> values) override {
    for (double& value : values) {
      double total = 0;
      for (int rank = 0; rank < size_; ++rank) total += value;
      value = total;
    }
  }

 private:
  int size_;
};

class LocalWorld final : public World {
 public:
  LocalWorld(int size, int rank, std::string_view transport)
      : World(rank, size, 0, 1), transport_(transport), control_(size) {}
  std::string_view transport() const override { return transport_; }
  Control& control() override { return control_; }
  std::unique_ptr<Communicator> communicator(device::Device& device, Group group, Purpose) override {
    return std::make_unique<LocalCommunicator>(device, std::move(group));
  }

 private:
  const std::string_view transport_;
  LocalControl control_;
};

}  // namespace

std::unique_ptr<World> solo_world() { return std::make_unique<LocalWorld>(1, 0, "self"); }

std::unique_ptr<World> dry_world(int size, int rank) {
  TRAINER_CHECK(rank >= 0 && rank < size, "rank {} of {}", rank, size);
  return std::make_unique<LocalWorld>(size, rank, "dry");
}

}  // namespace trainer::comm
