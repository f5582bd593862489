#include "mesh/mesh.h"

#include <gtest/gtest.h>

#include "unit/comm/rig.h"

namespace trainer::mesh {
namespace {

TEST(Mesh, LinksNeighboursAlongAnAxis) {
  for (const int stages : {2, 3, 4})
    for (int rank = 0; rank < 2 * stages; ++rank) {
      const auto world = comm::dry_world(2 * stages, rank);
      device::DryDevice device(1);
      Mesh mesh(*world, device, MeshShape({{"stage", stages}, {"tensor", 2}}));
      const AxisSet axis = mesh.shape().set("stage");
      const int own = rank / 2, next = (own + 1) % stages, previous = (own + stages - 1) % stages;
      const auto expect = [&](int from, comm::Way way, int to) {
        const comm::Group& group = mesh.link(axis, from, way).group();
        EXPECT_EQ(group.members, (std::vector{from * 2 + rank % 2, to * 2 + rank % 2}));
        EXPECT_EQ(group.index, from == own ? 0 : 1);
        EXPECT_EQ(group.axes, axis);
        EXPECT_EQ(group.name, "stage");
        EXPECT_EQ(&mesh.link(axis, from, way).group(), &group) << "made once";
      };
      expect(own, comm::Way::forward, next);
      expect(own, comm::Way::back, previous);
      expect(previous, comm::Way::forward, own);
      expect(next, comm::Way::back, own);
      if (stages == 4) {
        EXPECT_THROW(mesh.link(axis, (own + 2) % 4, comm::Way::back), Error) << "the link of two other ranks";
      }
      EXPECT_THROW(mesh.link(mesh.shape().set("tensor"), 5, comm::Way::forward), Error);
      EXPECT_EQ(device.memory_total(), 0);
    }
}

}  // namespace
}  // namespace trainer::mesh
