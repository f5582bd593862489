#include "mesh/route.h"

#include <gtest/gtest.h>

#include "rigs/layout_moves.h"
#include "unit/mesh/mesh_states.h"

namespace trainer::mesh {
namespace {

/// The elements that a rank sends on average, as a fraction of the tensor: `sent` / `of`.
struct Golden {
  std::vector<int> mesh;
  std::string from, to;
  int64_t sent, of;
};

TEST(Route, SendsTheGoldenFractionsOfTheTensor) {
  const std::vector<Golden> goldens = {
      {{2, 2}, "PP", "BB", 3, 2},  {{2, 3}, "PP", "BB", 5, 3},   {{2, 2, 2}, "PPP", "BBB", 7, 4},
      {{2, 2}, "PP", "00", 3, 4},  {{2, 2}, "00", "11", 3, 16},  {{2, 3}, "00", "11", 5, 36},
      {{2, 2}, "01", "10", 7, 16}, {{2, 3}, "01", "10", 13, 36}, {{2, 2}, "00", "B0", 9, 16},
      {{2, 3}, "00", "B0", 5, 12}, {{4, 2}, "00", "B0", 35, 64}, {{2, 2}, "B0", "00", 1, 4},
      {{2, 3}, "B0", "00", 1, 4},  {{2, 2}, "P0", "0B", 3, 4},   {{2, 2}, "P0", "01", 1, 2},
      {{2, 2}, "01", "BB", 3, 4},  {{2, 3}, "00", "BB", 5, 6},   {{4}, "B", "0", 0, 1},
      {{4}, "0", "B", 3, 4},       {{4}, "P", "0", 3, 4},        {{4}, "P", "B", 3, 2},
      {{4}, "0", "1", 3, 16},      {{4}, "B", "P", 0, 1},        {{4}, "0", "P", 0, 1},
  };
  for (const Golden& golden : goldens) {
    const MeshShape mesh = mesh_of(golden.mesh);
    const Route route = find_route(state(mesh, golden.from), state(mesh, golden.to));
    EXPECT_EQ(route.ring_elements * golden.of, golden.sent * kElements * mesh.world_size())
        << golden.from << " to " << golden.to << ": " << to_string(route);
  }
}

TEST(Route, ReportsWhatItDoes) {
  const MeshShape mesh = mesh_of({2, 2});
  const auto text = [&](const std::string& from, const std::string& to) {
    return to_string(find_route(state(mesh, from), state(mesh, to)));
  };
  EXPECT_EQ(text("PP", "BB"), "all_reduce over a0+a1");
  EXPECT_EQ(text("00", "11"), "all_to_all over a0+a1");
  EXPECT_EQ(text("00", "B0"), "all_to_all over a0+a1, all_to_all over a1, all_gather over a0");
  EXPECT_EQ(text("B0", "00"), "zero fill over a1, slice over a0, reduce_scatter over a1");
  EXPECT_EQ(text("B1", "B1"), "nothing");
}

TEST(Route, IsNoLongerThanAnyDetour) {
  for (const std::vector<int>& sizes : {std::vector{2, 2}, {2, 3}, {3, 2}, {4, 2}}) {
    const MeshShape mesh = mesh_of(sizes);
    const std::vector<Layout> states = all_states(mesh);
    std::vector<std::vector<int64_t>> cost;
    for (const Layout& from : states) {
      cost.emplace_back();
      for (const Layout& to : states) cost.back().push_back(find_route(from, to).ring_elements);
    }
    for (size_t a = 0; a < states.size(); ++a) {
      EXPECT_EQ(cost[a][a], 0);
      for (size_t b = 0; b < states.size(); ++b)
        for (size_t c = 0; c < states.size(); ++c) ASSERT_LE(cost[a][c], cost[a][b] + cost[b][c]);
    }
  }
}

TEST(Route, StepsKeepTheOrderInWhichAxesCut) {
  const MeshShape mesh = mesh_of({2, 2, 2});
  const std::vector<Layout> states = all_states(mesh);
  for (const Layout& from : states)
    for (const Layout& to : states) {
      Layout layout = from;
      for (const Step& step : find_route(from, to).steps) {
        for (int a = 0; a < mesh.axes(); ++a) {
          if ((step.axes >> a & 1) != 0) {
            ASSERT_EQ(layout.on(a), step.from);
            continue;
          }
          const Placement stays = layout.on(a);
          if (stays.kind != Placement::Kind::split || (stays != step.from && stays != step.to)) continue;
          ASSERT_EQ(step.axes & ((AxisSet{1} << a) - 1), 0u) << to_string(from) << " to " << to_string(to);
        }
        layout = layout.with(step.axes, step.to);
      }
      ASSERT_EQ(layout, to);
    }
}

TEST(Route, GroupTotalsAreThoseOfTheCollectives) {
  for (int g = 2; g <= 8; ++g) {
    const MeshShape mesh = mesh_of({g});
    const Layout whole(mesh, {8 * 840, 840});
    const auto total = [&](Placement from, Placement to) {
      const Route route = find_route(whole.with("a0", from), whole.with("a0", to));
      EXPECT_EQ(route.steps.size(), 1u);
      return route.steps[0].wire_elements();
    };
    const int64_t elements = whole.shape().count();
    EXPECT_EQ(total(split(0), kReplicate), (g - 1) * elements);
    EXPECT_EQ(total(kPartial, split(1)), (g - 1) * elements);
    EXPECT_EQ(total(kPartial, kReplicate), 2 * (g - 1) * elements);
    EXPECT_EQ(total(split(0), split(1)), (g - 1) * elements / g);
    EXPECT_EQ(total(kFlat, kReplicate), (g - 1) * elements);
    EXPECT_EQ(total(kPartial, kFlat), (g - 1) * elements);
    EXPECT_EQ(total(kReplicate, kFlat), 0);
  }
}

TEST(Route, TheWayBackOfAGradientCostsTheSame) {
  // The transpose of an all_gather is a reduce_scatter, which sends as much; slices and their transposes send nothing.
  const MeshShape mesh = mesh_of({2, 3});
  for (const Layout& from : all_states(mesh))
    for (const Layout& to : all_states(mesh)) {
      if ((from.axes(kPartial) | to.axes(kPartial)) != 0) continue;
      EXPECT_EQ(find_route(from, to).ring_elements,
                find_route(gradient_layout(to), gradient_layout(from)).ring_elements)
          << to_string(from) << " to " << to_string(to);
    }
}

TEST(Route, GradientsReachFlatParameters) {
  const MeshShape mesh({{"data", 2}, {"z", 2}, {"x", 3}});
  const Layout weight = Layout(mesh, {6, 8}).with("x", split(0)).with("z", kFlat);
  const Layout tokens = Layout(mesh, {16, 6}).with("data", split(0)).with("z", split(0)).with("x", split(1));
  EXPECT_EQ(to_string(find_route(gradient_of(weight, tokens), weight)), "reduce_scatter over z, all_reduce over data");
}

TEST(Route, LayoutsOfDifferentTensorsAreRejected) {
  const MeshShape mesh = mesh_of({2});
  EXPECT_THROW(find_route(Layout(mesh, {4, 4}), Layout(mesh, {4, 8})), Error);
  EXPECT_THROW(find_route(Layout(mesh, {4, 4}), Layout(mesh, {4, 4}).transposed()), Error);
  EXPECT_THROW(find_route(Layout(mesh, {4, 4}), Layout(mesh_of({4}), {4, 4})), Error);
}

}  // namespace
}  // namespace trainer::mesh
