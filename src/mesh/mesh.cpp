#include "mesh/mesh.h"

#include "base/error.h"

namespace trainer::mesh {

Mesh::Mesh(comm::World& world, device::Device& device, MeshShape shape)
    : world_(world), device_(device), shape_(std::move(shape)) {
  TRAINER_CHECK(shape_.world_size() == world.size(), "a mesh of {} ranks does not fit a world of {}",
                shape_.world_size(), world.size());
}

comm::Communicator& Mesh::along(AxisSet axes, comm::Purpose purpose) {
  auto& communicator = communicators_[{axes, static_cast<int>(purpose)}];
  if (communicator == nullptr) {
    comm::Group group{axes, shape_.name_of(axes), shape_.members(rank(), axes), shape_.index(rank(), axes), purpose};
    communicator = world_.communicator(device_, std::move(group), purpose);
  }
  return *communicator;
}

comm::Communicator& Mesh::link(AxisSet axes, int from, comm::Way way) {
  const int ranks = shape_.group_size(axes), own = shape_.index(rank(), axes);
  const int to = (from + (way == comm::Way::forward ? 1 : ranks - 1)) % ranks;
  TRAINER_CHECK(from >= 0 && from < ranks && from != to && (own == from || own == to),
                "rank {} is at place {} along {}, not on the link from {} to {}", rank(), own, shape_.name_of(axes),
                from, to);
  const std::vector<int> ring = shape_.members(rank(), axes);
  comm::Group group{.axes = axes,
                    .name = shape_.name_of(axes),
                    .members = {ring[static_cast<size_t>(from)], ring[static_cast<size_t>(to)]},
                    .index = own == from ? 0 : 1,
                    .link = comm::link_in_ring(ranks, from, way)};
  auto& communicator = communicators_[{axes, group.queue()}];
  if (communicator == nullptr) communicator = world_.communicator(device_, std::move(group), comm::Purpose::critical);
  return *communicator;
}

const Route& Mesh::route(const Layout& from, const Layout& to) {
  const auto found = routes_.find({from, to});
  return found != routes_.end() ? found->second
                                : routes_.emplace(std::pair{from, to}, find_route(from, to)).first->second;
}

}  // namespace trainer::mesh
