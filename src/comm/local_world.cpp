// Worlds without other ranks: one rank, and the dry stand-in for many.
#include "comm/collective.h"
#include "comm/host_control.h"
#include "tensor/buffer.h"

namespace trainer::comm {
namespace {

/// LocalCommunicator completes operations of one rank at once, and only counts those of larger groups.
class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(device::Device& device, Group group) : Communicator(std::move(group)) {
    if (size() > 1 && device.kind() == device::Kind::cpu)
      staging_ = Buffer(device, "communication", {kStagingBytes}, DType::u8);
  }

 private:
  Pending* start(const Request&) override { return nullptr; }
  Buffer staging_;
};

class SoloWorld final : public World {
 public:
  SoloWorld() : World(0, 1, 0, 1) {}
  std::string_view transport() const override { return "self"; }
  Control& control() override { return control_; }
  std::unique_ptr<Communicator> communicator(device::Device& device, Group group, Lane) override {
    TRAINER_CHECK(group.members.size() == 1, "a group of {} in a world of one rank", group.members.size());
    return std::make_unique<LocalCommunicator>(device, std::move(group));
  }
  void configure(const WorldOptions&) override {}
  void fail(Code, const std::string&) noexcept override {}
  bool wait_for_all_ranks(double) noexcept override { return true; }
  int64_t bytes_sent() const override { return 0; }

 private:
  HostControl control_{
      [](device::Device& device) { return std::make_unique<LocalCommunicator>(device, control_group(0, 1)); }};
};

/// DryControl returns this rank's data in the place of every rank.
class DryControl final : public Control {
 public:
  explicit DryControl(int size) : size_(size) {}
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
  const Meter& meter() const override { return meter_; }

 private:
  int size_;
  Meter meter_;
};

class DryWorld final : public World {
 public:
  DryWorld(int size, int rank) : World(rank, size, 0, 1), control_(size) {}
  std::string_view transport() const override { return "dry"; }
  Control& control() override { return control_; }
  std::unique_ptr<Communicator> communicator(device::Device& device, Group group, Lane) override {
    return std::make_unique<LocalCommunicator>(device, std::move(group));
  }
  void configure(const WorldOptions&) override {}
  void fail(Code, const std::string&) noexcept override {}
  bool wait_for_all_ranks(double) noexcept override { return true; }
  int64_t bytes_sent() const override { return 0; }

 private:
  DryControl control_;
};

}  // namespace

std::unique_ptr<World> solo_world() { return std::make_unique<SoloWorld>(); }

std::unique_ptr<World> dry_world(int size, int rank) {
  TRAINER_CHECK(rank >= 0 && rank < size, "rank {} of {}", rank, size);
  return std::make_unique<DryWorld>(size, rank);
}

}  // namespace trainer::comm
