// Redistributions in flight: the work between start_move() and finish(), and the location of results.
#include <gtest/gtest.h>

#include "comm/world.h"
#include "mesh/redistribute.h"
#include "unit/mesh/mesh_states.h"
#include "unit/mesh/moved_tensors.h"

namespace trainer::mesh {
namespace {

TEST(Transit, RunsItsFirstCollectiveUntilItIsFinishedAndNoOther) {
  const MeshShape shape = mesh_of({2, 2});
  const std::vector<Layout> states = all_states(shape, {8, 8});
  comm::run_on_threads(4, {}, [&](comm::World& world) {
    Rank rank(world, shape);
    const int me = rank.mesh.rank();
    for (const Layout& from : states)
      for (const Layout& to : states) {
        const Route& route = rank.mesh.route(from, to);
        const std::string what = format("{} to {}", to_string(from), to_string(to));
        const auto collectives = [&] {
          int64_t calls = 0;
          for (const auto& [key, count] : rank.meter.comm()) calls += count.calls;
          return calls;
        };
        const auto all = std::ranges::count_if(route.steps, [](const Step& step) { return step.op.has_value(); });
        for (const bool waits : {false, true}) {
          Scratch in = rank.ex.take("in", from.local(me), DType::i32);
          fill<int32_t>(from, me, 71, in);
          rank.meter.reset();
          Transit transit = start_move(rank.ex, rank.mesh, comm::Purpose::critical, from, to, std::move(in));
          TRAINER_CHECK(collectives() == std::min<int64_t>(all, 1), "{}: {} were started", what, collectives());
          if (waits) transit.wait(rank.ex);
          // A collective for a different purpose runs in between.
          const Scratch other = rank.ex.take("other", {4}, DType::i32);
          rank.mesh.along(shape.all(), comm::Purpose::weights).broadcast(rank.ex, other, 0).join(rank.ex);
          const Scratch out = transit.finish(rank.ex);
          TRAINER_CHECK(collectives() == all + 1, "{}: {} collectives of {}", what, collectives(), all);
          check<int32_t>(rank, to, 71, out, what);
        }
      }
  });
}

TEST(Transit, LeavesItsResultWhereTheCallerRequestsIt) {
  const MeshShape shape = mesh_of({2, 2});
  const std::vector<Layout> states = all_states(shape, {8, 8});
  comm::run_on_threads(4, {}, [&](comm::World& world) {
    Rank rank(world, shape);
    const int me = rank.mesh.rank();
    for (const Layout& from : states)
      for (const Layout& to : states)
        for (const bool owned : {false, true}) {
          Scratch in = rank.ex.take("in", from.local(me), DType::i32);
          fill<int32_t>(from, me, 81, in);
          const std::vector<int32_t> before(in.tensor().span<int32_t>().begin(), in.tensor().span<int32_t>().end());
          const Scratch out = rank.ex.take("out", to.local(me), DType::i32);
          Scratch given = owned ? std::move(in) : Scratch();
          Transit transit =
              owned ? start_move(rank.ex, rank.mesh, comm::Purpose::critical, from, to, std::move(given), out)
                    : start_move(rank.ex, rank.mesh, comm::Purpose::critical, from, to, in.tensor(), out);
          const Scratch nothing = transit.finish(rank.ex);
          const std::string what = format("{} to {}", to_string(from), to_string(to));
          TRAINER_CHECK(!nothing, "{} has a handle of its own", what);
          check<int32_t>(rank, to, 81, out, what);
          if (owned) continue;
          const auto now = in.tensor().span<int32_t>();
          TRAINER_CHECK(std::equal(now.begin(), now.end(), before.begin()), "{} wrote into its input", what);
        }
  });
}

TEST(Transit, ReplacesItsInputBetweenAllStatesOfEqualShape) {
  const auto replace_and_check = [](Rank& rank, const Layout& from, const Layout& to) {
    const int me = rank.mesh.rank();
    const Scratch x = rank.ex.take("x", from.local(me), DType::i32);
    fill<int32_t>(from, me, 91, x);
    Transit move = start_move_in_place(rank.ex, rank.mesh, comm::Purpose::critical, from, to, x);
    const std::string what =
        format("{} to {} by {}", to_string(from), to_string(to), to_string(rank.mesh.route(from, to)));
    TRAINER_CHECK(!move.finish(rank.ex), "{} has a handle of its own", what);
    check<int32_t>(rank, to, 91, x, what);
  };
  // With copies along an axis that is not partial, the cheapest sum is a slice, a reduce-scatter and an all-gather.
  const MeshShape wide = mesh_of({2, 3});
  EXPECT_EQ(to_string(find_route(state(wide, "BP"), state(wide, "BB"))),
            "slice over a0, reduce_scatter over a1, all_gather over a0+a1");
  for (const std::vector<int>& sizes : {std::vector{4}, {2, 3}, {3, 2}, {2, 2, 2}, {2, 2, 2, 2}}) {
    const MeshShape shape = mesh_of(sizes);
    const std::vector<Layout> states = all_states(shape, {48, 48});
    comm::run_on_threads(shape.world_size(), {}, [&](comm::World& world) {
      Rank rank(world, shape);
      for (const Layout& from : states) {
        for (const Layout& to : states)
          if (shape.axes() < 4 && from.box() == to.box()) replace_and_check(rank, from, to);
        if (shape.axes() == 4) replace_and_check(rank, from, from.with(from.axes(kPartial), kReplicate));
      }
    });
  }
}

TEST(Transit, ThatReplacesItsInputRejectsAnotherShape) {
  const MeshShape shape = mesh_of({2, 2});
  const auto world = comm::dry_world(4);
  Rank rank(*world, shape);
  const Layout a = state(shape, "PB"), b = state(shape, "0B");
  const Scratch x = rank.ex.take("x", a.local(0), DType::i32);
  EXPECT_THROW(start_move_in_place(rank.ex, rank.mesh, comm::Purpose::critical, a, b, x).finish(rank.ex), Error);
}

}  // namespace
}  // namespace trainer::mesh
