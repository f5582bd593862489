// The dry version of an NCCL world: it counts the GPU memory that NCCL uses in addition to the run's tensors.
#include <map>

#include "comm/gpu_transport.h"
#include "comm/nccl/links.h"
#include "tensor/buffer.h"

namespace trainer::comm {
namespace {

class DryNcclWorld final : public World {
 public:
  DryNcclWorld(World& below, device::Device& device, int lanes)
      : World(below.rank(), below.size(), below.local_rank(), below.local_size()),
        below_(below),
        device_(device),
        streams_(nccl::streams_of(lanes)) {}

  std::string_view transport() const override { return below_.transport(); }
  Control& control() override { return below_.control(); }
  std::unique_ptr<Communicator> communicator(device::Device& device, Group group, Purpose purpose) override {
    const auto link = nccl::link_of(group, purpose, streams_);
    if (&device == &device_ && link && !links_.contains(*link))
      links_.emplace(*link,
                     Buffer(device_, "nccl", {nccl::bytes_of_communicator(nccl::channels_of(group))}, DType::u8));
    return below_.communicator(device, std::move(group), purpose);
  }

 private:
  World& below_;
  device::Device& device_;
  const int streams_;
  std::map<std::pair<uint32_t, int>, Buffer> links_;
};

}  // namespace

std::unique_ptr<World> dry_nccl_world(World& dry, device::Device& device, int lanes) {
  TRAINER_CHECK(device.dry(), "NCCL's memory is counted only on a dry device");
  return std::make_unique<DryNcclWorld>(dry, device, lanes);
}

}  // namespace trainer::comm
