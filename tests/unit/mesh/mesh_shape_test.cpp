#include "mesh/mesh_shape.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trainer::mesh {
namespace {

TEST(MeshShape, RankIsTheRowMajorCoordinate) {
  const MeshShape shape({{"data", 2}, {"z", 3}, {"x", 4}});
  EXPECT_EQ(shape.world_size(), 24);
  for (int rank = 0; rank < 24; ++rank) {
    EXPECT_EQ(shape.coordinate(rank, 0), rank / 12);
    EXPECT_EQ(shape.coordinate(rank, 1), rank / 4 % 3);
    EXPECT_EQ(shape.coordinate(rank, 2), rank % 4);
    EXPECT_EQ(shape.index(rank, shape.all()), rank);
    EXPECT_EQ(shape.index(rank, 0), 0);
  }
}

TEST(MeshShape, GroupsAlongOneAxisAndAlongSeveral) {
  const MeshShape shape({{"data", 2}, {"z", 3}, {"x", 4}});
  EXPECT_EQ(shape.members(17, shape.set("data")), (std::vector{5, 17}));
  EXPECT_EQ(shape.members(17, shape.set("z")), (std::vector{13, 17, 21}));
  EXPECT_EQ(shape.members(17, shape.set("x")), (std::vector{16, 17, 18, 19}));
  EXPECT_EQ(shape.members(17, shape.set("data") | shape.set("x")), (std::vector{4, 5, 6, 7, 16, 17, 18, 19}));
  EXPECT_EQ(shape.members(17, 0), (std::vector{17}));
  EXPECT_EQ(shape.index(17, shape.set("data") | shape.set("x")), 5);
}

TEST(MeshShape, EveryRankIsAtItsPlaceInItsGroup) {
  const MeshShape shape({{"a", 3}, {"b", 1}, {"c", 2}, {"d", 2}});
  for (AxisSet set = 0; set <= shape.all(); ++set)
    for (int rank = 0; rank < shape.world_size(); ++rank) {
      const std::vector<int> group = shape.members(rank, set);
      ASSERT_EQ(static_cast<int>(group.size()), shape.group_size(set));
      EXPECT_EQ(group[static_cast<size_t>(shape.index(rank, set))], rank);
    }
}

TEST(MeshShape, AliasesNameProductsOfAxes) {
  const MeshShape shape({{"data", 2}, {"kv", 2}, {"rep", 3}}, {{"tensor", 6}});
  EXPECT_EQ(shape.set("tensor"), shape.set("kv") | shape.set("rep"));
  EXPECT_EQ(shape.group_size(shape.set("tensor")), 6);
  EXPECT_EQ(shape.index(10, shape.set("tensor")), 4);
  EXPECT_EQ(shape.name_of(shape.set("tensor")), "tensor");
  EXPECT_EQ(shape.name_of(shape.set("rep")), "rep");
  EXPECT_EQ(shape.name_of(shape.set("data") | shape.set("rep")), "data+rep");
  EXPECT_EQ(shape.name_of(kControlAxes), "control");
}

TEST(MeshShape, UnknownAndRepeatedNamesAreInternalErrors) {
  const MeshShape shape({{"data", 2}, {"x", 3}});
  EXPECT_THROW(shape.set("y"), Error);
  EXPECT_THROW(MeshShape({{"x", 2}, {"x", 2}}), Error);
  EXPECT_THROW(MeshShape({{"x", 2}}, {{"x", 1}}), Error);
  EXPECT_THROW(MeshShape({{"x", 2}}, {{"both", 3}}), Error);
  EXPECT_THROW(MeshShape({{"x", 0}}), Error);
}

}  // namespace
}  // namespace trainer::mesh
