#include "mesh/redistribute.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "comm/world.h"
#include "rigs/layout_moves.h"
#include "unit/mesh/mesh_states.h"
#include "unit/mesh/moved_tensors.h"

namespace trainer::mesh {
namespace {

using Counts = std::map<CommKey, std::array<int64_t, 3>>;
Counts predicted(const Route& route, DType dtype) {
  Counts counts;
  for (const Step& step : route.steps) {
    if (!step.op) continue;
    auto& [calls, elements, bytes] = counts[{step.axes, *step.op, dtype}];
    ++calls;
    elements += step.payload;
    bytes += step.wire_elements() * size_of(dtype);
  }
  return counts;
}
Counts counted(const Meter& meter) {
  Counts counts;
  for (const auto& [key, count] : meter.comm())
    if (count.calls != 0) counts[key] = {count.calls, count.elements, count.wire_bytes};
  return counts;
}

template <typename T>
void move_and_check(Rank& rank, const Layout& from, const Layout& to, uint64_t seed) {
  const DType dtype = DTypeOf<T>::value;
  Scratch in = rank.ex.take("in", from.local(rank.mesh.rank()), dtype);
  fill<T>(from, rank.mesh.rank(), seed, in);
  rank.meter.reset();
  const Scratch out = redistribute(rank.ex, rank.mesh, comm::Purpose::critical, from, to, std::move(in));
  const std::string what =
      format("{} to {} by {}", to_string(from), to_string(to), to_string(rank.mesh.route(from, to)));
  TRAINER_CHECK(counted(rank.meter) == predicted(rank.mesh.route(from, to), dtype), "{}: counts differ", what);
  check<T>(rank, to, seed, out, what);
}

class EveryPairOfStates : public ::testing::TestWithParam<std::vector<int>> {};

TEST_P(EveryPairOfStates, IsMovedExactlyAndCountedAsPredicted) {
  const MeshShape shape = mesh_of(GetParam());
  const std::vector<Layout> states = all_states(shape, {24, 24});
  comm::run_on_threads(shape.world_size(), {}, [&](comm::World& world) {
    Rank rank(world, shape);
    uint64_t seed = 1;
    for (const Layout& from : states)
      for (const Layout& to : states) move_and_check<int32_t>(rank, from, to, ++seed);
  });
}
INSTANTIATE_TEST_SUITE_P(Meshes, EveryPairOfStates,
                         ::testing::Values(std::vector{2}, std::vector{3}, std::vector{4}, std::vector{2, 2},
                                           std::vector{2, 3}, std::vector{3, 2}, std::vector{4, 2},
                                           std::vector{2, 2, 2}),
                         [](const auto& info) {
                           std::string name;
                           for (const int size : info.param) name += (name.empty() ? "" : "x") + std::to_string(size);
                           return name;
                         });

TEST(Redistribute, OtherTypesAndTensorsLargeEnoughForRings) {
  const MeshShape shape = mesh_of({2, 2});
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"PP", "BB"}, {"PP", "11"}, {"01", "10"}, {"B0", "00"}, {"1P", "BB"}, {"00", "B0"}, {"11", "BP"}};
  comm::run_on_threads(4, {}, [&](comm::World& world) {
    Rank rank(world, shape);
    for (const auto& [from, to] : pairs) {
      move_and_check<float>(rank, state(shape, from), state(shape, to), 5);
      move_and_check<bf16>(rank, state(shape, from), state(shape, to), 6);
      move_and_check<double>(rank, state(shape, from), state(shape, to), 7);
    }
  });
}

TEST(Redistribute, TensorsOfOneThreeAndFourDims) {
  const MeshShape shape({{"a", 2}, {"b", 2}});
  comm::run_on_threads(4, {}, [&](comm::World& world) {
    Rank rank(world, shape);
    const auto move = [&](const Layout& whole, Placement a, Placement b, Placement to_a, Placement to_b) {
      move_and_check<int32_t>(rank, whole.with("a", a).with("b", b), whole.with("a", to_a).with("b", to_b), 11);
    };
    const Layout line(shape, {12}), cube(shape, {4, 6, 8}), tesseract(shape, {2, 4, 4, 2});
    move(line, split(0), kPartial, kReplicate, split(0));
    move(cube, split(1), kReplicate, split(2), split(0));
    move(cube, split(2), split(2), split(1), split(0));
    move(cube, kPartial, split(1), split(1), kReplicate);
    move(tesseract, split(3), split(1), split(2), split(2));
    move(tesseract, kPartial, kPartial, split(1), split(3));
  });
}

TEST(Redistribute, FlatTransposedAndPaddedParameters) {
  const MeshShape shape({{"data", 2}, {"z", 3}});
  comm::run_on_threads(6, {}, [&](comm::World& world) {
    Rank rank(world, shape);
    const Layout whole = Layout(shape, {7, 5}).padded(0, 8);
    const Layout flat = whole.with("z", kFlat), both = whole.with("data", kFlat).with("z", kFlat);
    const Layout split_flat = whole.with("data", split(0)).with("z", kFlat);
    const Layout partial = whole.with("z", kPartial), all_partial = partial.with("data", kPartial);
    const Layout even(shape, {6, 4});
    for (const auto& [from, to] : std::vector<std::pair<Layout, Layout>>{
             {whole, flat},
             {flat, whole},
             {partial, flat},
             {flat, partial},
             {both, whole},
             {all_partial, both},
             {split_flat, whole},
             {all_partial, split_flat},
             {all_partial, flat},
             {even.with("z", kPartial).with("data", kPartial), even.with("z", kFlat)}})
      move_and_check<int32_t>(rank, from, to, 21);
    const Layout table = Layout(shape, {11, 4}).padded(0, 12).transposed();
    move_and_check<int32_t>(rank, table.with("z", split(0)).with("data", split(1)), table, 22);
    move_and_check<int32_t>(rank, table.with("z", kPartial).with("data", split(0)), table.with("z", split(0)), 23);
  });
}

TEST(Redistribute, TheIdentityIsTheHandleItself) {
  comm::run_on_threads(2, {}, [&](comm::World& world) {
    const MeshShape shape = mesh_of({2});
    Rank rank(world, shape);
    const Layout layout = state(shape, "0");
    Scratch in = rank.ex.take("in", layout.local(rank.mesh.rank()), DType::f32);
    const std::byte* const memory = in.tensor().data;
    EXPECT_FALSE(redistribute(rank.ex, rank.mesh, comm::Purpose::critical, layout, layout, in.tensor()));
    const Scratch out = redistribute(rank.ex, rank.mesh, comm::Purpose::critical, layout, layout, std::move(in));
    EXPECT_EQ(out.tensor().data, memory);
    EXPECT_TRUE(rank.meter.comm().empty());
    EXPECT_EQ(rank.meter.of(OpKind::elementwise).calls, 0);
  });
}

TEST(Redistribute, SumsOfAnOwnedTensorAreFormedInPlace) {
  comm::run_on_threads(2, {}, [&](comm::World& world) {
    const MeshShape shape = mesh_of({2});
    Rank rank(world, shape);
    for (const auto& [from, to] : {std::pair{"P", "B"}, std::pair{"B", "P"}}) {
      Scratch in = rank.ex.take("in", {kRows, kCols}, DType::f32);
      fill<float>(state(shape, from), rank.mesh.rank(), 61, in);
      const std::byte* const memory = in.tensor().data;
      const Scratch out = redistribute(rank.ex, rank.mesh, comm::Purpose::critical, state(shape, from),
                                       state(shape, to), std::move(in));
      TRAINER_CHECK(out.tensor().data == memory, "{} to {} moved the tensor", from, to);
    }
  });
}

TEST(Redistribute, AViewIsLeftAsItWas) {
  const MeshShape shape = mesh_of({2, 2});
  const std::vector<Layout> states = all_states(shape, {8, 8});
  comm::run_on_threads(4, {}, [&](comm::World& world) {
    Rank rank(world, shape);
    for (const Layout& from : states)
      for (const Layout& to : states) {
        const Scratch in = rank.ex.take("in", from.local(rank.mesh.rank()), DType::i32);
        fill<int32_t>(from, rank.mesh.rank(), 31, in);
        const std::vector<int32_t> before(in.tensor().span<int32_t>().begin(), in.tensor().span<int32_t>().end());
        const Scratch out = redistribute(rank.ex, rank.mesh, comm::Purpose::critical, from, to, in.tensor());
        const auto now = in.tensor().span<int32_t>();
        TRAINER_CHECK(std::equal(now.begin(), now.end(), before.begin()), "{} to {} wrote into its input",
                      to_string(from), to_string(to));
        if (out) check<int32_t>(rank, to, 31, out, to_string(to));
      }
  });
}

TEST(Redistribute, BackwardIsTheDualTheOtherWayRound) {
  // In every layout and its dual, the sum over ranks of (local tensor) · (local gradient) is the dot product of the
  // logical tensors, before and after the forward pass: so the backward pass is the transpose of the forward pass.
  const MeshShape shape = mesh_of({2, 2});
  const std::vector<Layout> states = all_states(shape, {8, 8});
  double product = 0;
  for (int64_t i = 0; i < 64; ++i) product += value_of(41, i) * value_of(42, i);
  comm::run_on_threads(4, {}, [&](comm::World& world) {
    Rank rank(world, shape);
    const auto inner = [&](const Tensor& a, const Tensor& b) {
      double sum = 0;
      for (int64_t i = 0; i < a.count(); ++i) sum += a.as<double>()[i] * b.as<double>()[i];
      world.control().sum({&sum, 1});
      return sum;
    };
    for (const Layout& from : states)
      for (const Layout& to : states) {
        const int me = rank.mesh.rank();
        const Scratch x = rank.ex.take("x", from.local(me), DType::f64),
                      dy = rank.ex.take("dy", gradient_layout(to).local(me), DType::f64);
        fill<double>(from, me, 41, x);
        fill<double>(gradient_layout(to), me, 42, dy);
        const Scratch y = redistribute(rank.ex, rank.mesh, comm::Purpose::critical, from, to, x.tensor());
        const Scratch dx = redistribute(rank.ex, rank.mesh, comm::Purpose::critical, gradient_layout(to),
                                        gradient_layout(from), dy.tensor());
        const double forward = inner(y ? y : x, dy), backward = inner(x, dx ? dx : dy);
        TRAINER_CHECK(forward == product && backward == product, "{} to {}: {} and {}, not {}", to_string(from),
                      to_string(to), forward, backward, product);
      }
  });
}

TEST(Redistribute, ADryPassPlansTheMemoryAndCountsTheSame) {
  const MeshShape shape = mesh_of({2, 2});
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"PP", "11"}, {"01", "10"}, {"00", "B0"}, {"BB", "PP"}};
  comm::run_on_threads(4, {}, [&](comm::World& world) {
    const auto pass = [&](Exec& ex, Mesh& mesh) {
      for (const auto& [from, to] : pairs) {
        const Layout a = state(shape, from, {8, 8}), b = state(shape, to, {8, 8});
        Scratch in = ex.take("in", a.local(mesh.rank()), DType::i32);
        if (!ex.device.dry()) fill<int32_t>(a, mesh.rank(), 51, in);
        const Scratch out = redistribute(ex, mesh, comm::Purpose::critical, a, b, std::move(in));
        if (!ex.device.dry() && b.axes(kPartial) == 0)
          for (const Stretch& run : b.runs(mesh.rank()))
            for (int64_t i = 0; i < run.length; ++i)
              TRAINER_CHECK(out.tensor().as<int32_t>()[run.local + i] == value_of(51, run.global + i), "{} to {}", from,
                            to);
      }
    };
    device::CpuDevice device(1);
    device::DryDevice dry(1);
    const auto dry_world = comm::dry_world(4, world.rank());
    Mesh mesh(world, device, shape), dry_mesh(*dry_world, dry, shape);
    Arena arena(device);
    Meter planned, real;
    Exec plan{dry, arena, planned}, ex{device, arena, real};
    arena.record("moves", [&] { pass(plan, dry_mesh); });
    arena.seal();
    arena.begin("moves");
    pass(ex, mesh);
    arena.end();
    EXPECT_EQ(counted(planned), counted(real));
    EXPECT_FALSE(counted(real).empty());
  });
}

TEST(Redistribute, AnInputOfTheWrongShapeIsAnInternalError) {
  const auto world = comm::dry_world(2);
  const MeshShape shape = mesh_of({2});
  Rank rank(*world, shape);
  const Layout layout(shape, {4, 4});
  const Scratch in = rank.ex.take("in", {4, 5}, DType::f32);
  EXPECT_THROW(
      redistribute(rank.ex, rank.mesh, comm::Purpose::critical, layout, layout.with("a0", split(0)), in.tensor()),
      Error);
}

}  // namespace
}  // namespace trainer::mesh
