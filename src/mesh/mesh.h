#pragma once
// Mesh: a rank's coordinates on the named axes and its communicators along them. Communicators are created on first use
// (the dry pass that plans a run uses all of them), one for each set of axes and purpose, and for each link.
#include <map>
#include <memory>

#include "comm/world.h"
#include "mesh/mesh_shape.h"
#include "mesh/route.h"

namespace trainer::mesh {

class Mesh {
 public:
  /// The product of the axis sizes must be the size of the world (internal error). World and device must outlive the
  /// mesh.
  Mesh(comm::World& world, device::Device& device, MeshShape shape);

  const MeshShape& shape() const { return shape_; }
  comm::World& world() const { return world_; }
  int rank() const { return world_.rank(); }
  int size(std::string_view name) const { return shape_.group_size(shape_.set(name)); }
  int index(std::string_view name) const { return shape_.index(rank(), shape_.set(name)); }

  comm::Communicator& along(AxisSet axes, comm::Purpose purpose);
  comm::Communicator& along(std::string_view name, comm::Purpose purpose) { return along(shape_.set(name), purpose); }
  /// Returns the link from the rank at place `from` of the ring along `axes` to its neighbour; this rank is one of the
  /// two.
  comm::Communicator& link(AxisSet axes, int from, comm::Way way);
  comm::Control& host() const { return world_.control(); }
  /// Returns find_route(from, to); the result is cached.
  const Route& route(const Layout& from, const Layout& to);

 private:
  comm::World& world_;
  device::Device& device_;
  MeshShape shape_;
  std::map<std::pair<AxisSet, int>, std::unique_ptr<comm::Communicator>> communicators_;  // by axes and Group::queue()
  std::map<std::pair<Layout, Layout>, Route> routes_;
};

}  // namespace trainer::mesh
