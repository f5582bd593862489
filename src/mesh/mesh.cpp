#include "mesh/mesh.h"

#include "base/error.h"

namespace trainer::mesh {

Mesh::Mesh(comm::World& world, device::Device& device, MeshShape shape)
    : world_(world), device_(device), shape_(std::move(shape)) {
  TRAINER_CHECK(shape_.world_size() == world.size(), "a mesh of {} ranks does not fit a world of {}",
                shape_.world_size(), world.size());
}

comm::Communicator& Mesh::along(AxisSet axes, comm::Purpose purpose) {
  auto& communicator = communicators_[{axes, purpose}];
  if (communicator == nullptr) {
    comm::Group group{axes, shape_.name_of(axes), shape_.members(rank(), axes), shape_.index(rank(), axes), purpose};
    communicator = world_.communicator(device_, std::move(group), purpose);
  }
  return *communicator;
}

const Route& Mesh::route(const Layout& from, const Layout& to) {
  const auto found = routes_.find({from, to});
  return found != routes_.end() ? found->second
                                : routes_.emplace(std::pair{from, to}, find_route(from, to)).first->second;
}

}  // namespace trainer::mesh
