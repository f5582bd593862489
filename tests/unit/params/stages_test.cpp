// Groups that are on some ranks only, as those of pipeline stages.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <ranges>

#include "params/grad_sink.h"

using namespace trainer;
using mesh::AxisSet;
using mesh::Layout;
using mesh::Mesh;
using mesh::MeshShape;
using mesh::split;
using params::GradSink;
using params::ParamStore;
using params::SlotId;
using params::SlotPart;

namespace {

TEST(Stages, RanksMayHaveDifferentGroups) {
  // Rank r has the groups whose number is r modulo the number of ranks, as pipeline stages have; group 6 is empty.
  constexpr int kGroups = 7;
  for (const int ranks : {1, 2, 3})
    for (const bool bad : {false, true})
      comm::run_on_threads(ranks, {}, [&](comm::World& world) {
        device::CpuDevice device(1);
        Mesh mesh(world, device, MeshShape({{"stage", ranks}}));
        ParamStore store(device, DType::f32, &mesh);
        std::map<int, SlotId> slots;  // by group
        for (int g = 0; g < kGroups; ++g) {
          ASSERT_EQ(store.add_group(format("{}", g)), g);
          // A rank's part of a vector that is split over the ranks, so that this rank counts it.
          const Layout own = Layout(mesh.shape(), {5 * ranks}).with("stage", split(0));
          if (g % ranks == world.rank() && g != 6) slots[g] = store.add_slot(g, {{format("w{}", g), own, {}}});
          EXPECT_EQ(store.has(g), slots.contains(g));
        }
        store.allocate(true);
        GradSink sink(store);
        sink.prepare(device);
        std::vector<int> reduced, expected;
        sink.on_group_reduced([&](Exec&, int group) { reduced.push_back(group); });
        Arena arena(device, Arena::Mode::heap);
        Meter meter;
        Exec ex{device, arena, meter};
        for (int step = 0; step < 2; ++step) {
          reduced.clear();
          expected.clear();
          sink.begin_step();
          sink.begin_micro(true);
          for (const auto& [group, slot] : std::views::reverse(slots)) {
            for (float& x : sink.slot(ex, slot).tensor.span<float>()) x = static_cast<float>(group + 1);
            if (bad && (group == 1 || group == 4)) store.gradient(slot).span<float>()[group] = NAN;
            sink.complete(ex, slot);
            sink.end_group(ex, group);
            expected.push_back(group);
          }
          sink.end_group(ex, 6);
          sink.end_micro(ex);
          const params::GradNorm norm = sink.finish(ex);
          EXPECT_EQ(reduced, expected);
          EXPECT_EQ(norm.bad_tensor, bad ? "w1" : "") << "on every rank";
          if (!bad) {
            EXPECT_DOUBLE_EQ(norm.norm, std::sqrt(5 * (1 + 4 + 9 + 16 + 25 + 36)));
          }
        }
      });
}

/// Returns the norm of random gradients of five groups. With an axis "stage", each group is on one rank along it.
double norm_on(const MeshShape& shape) {
  double found = 0;
  comm::run_on_threads(shape.world_size(), {}, [&](comm::World& world) {
    device::CpuDevice device(1);
    Mesh mesh(world, device, shape);
    ParamStore store(device, DType::f64, &mesh);
    const AxisSet stage = shape.has("stage") ? shape.set("stage") : 0;
    std::map<int, SlotId> slots;  // by group
    for (int g = 0; g < 5; ++g) {
      store.add_group(format("{}", g));
      const SlotPart part{format("w{}", g), Layout(shape, {5, 6}).with("x", split(1)), {}};
      if (g % shape.group_size(stage) == shape.index(world.rank(), stage)) slots[g] = store.add_slot(g, {part});
    }
    store.allocate(true);
    GradSink sink(store, {.apart = stage});
    sink.prepare(device);
    Arena arena(device, Arena::Mode::heap);
    Meter meter;
    Exec ex{device, arena, meter};
    sink.begin_step();
    sink.begin_micro(true);
    for (const auto& [group, slot] : std::views::reverse(slots)) {
      const Tensor grad = sink.slot(ex, slot).tensor;
      for (int64_t i = 0; i < grad.count(); ++i)
        grad.as<double>()[i] = std::sin(static_cast<double>(100 * group + i + 37 * mesh.index("x")));
      sink.complete(ex, slot);
      sink.end_group(ex, group);
    }
    sink.end_micro(ex);
    const double norm = sink.finish(ex).norm;
    if (world.first()) found = norm;
  });
  return found;
}

TEST(Stages, TheNormHasTheBitsOfOneStage) {
  for (const int x : {1, 3})
    for (const int stages : {2, 3}) {
      EXPECT_EQ(norm_on(MeshShape({{"stage", stages}, {"x", x}})), norm_on(MeshShape({{"x", x}})));
      EXPECT_EQ(norm_on(MeshShape({{"stage", stages}, {"data", 2}, {"x", x}})),
                norm_on(MeshShape({{"data", 2}, {"x", x}})));
    }
}

}  // namespace
