// Slots stored on ranks other than those that use them, and gradients with partial sums on several ranks of a replica.
// Every rank writes integers given by a formula, so all sums are known exactly.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "params/grad_sink.h"

using namespace trainer;
using mesh::AxisSet;
using mesh::kFlat;
using mesh::kReplicate;
using mesh::Layout;
using mesh::Mesh;
using mesh::MeshShape;
using mesh::split;
using params::GradSink;
using params::Init;
using params::ParamStore;
using params::SlotId;
using params::SlotPart;
using params::WeightCache;

namespace {

struct MeshExtents {
  int data, rep, z, x;
  MeshShape shape() const { return MeshShape({{"data", data}, {"rep", rep}, {"z", z}, {"x", x}}); }
};
std::string to_string(const MeshExtents& g) { return format("data {} rep {} z {} x {}", g.data, g.rep, g.z, g.x); }

/// One of everything: a flat matrix of two parts, a vector with partial sums over z, a flat vector; two parts of which
/// one is held by several ranks, as matrices, as vectors and flat; a flat table that is written twice; several matrices
/// in each of two parts, divided over x or with rows divided over it.
struct Model {
  explicit Model(ParamStore& store) : store(store) {
    const MeshShape& shape = store.mesh_shape();
    const auto layout = [&](Shape global) { return Layout(shape, global); };
    const Init normal{Init::Kind::normal, 0.5};
    const int first = store.add_group("first");
    add(first, {{"q", layout({6, 8}).with("x", split(1)).with("z", kFlat), normal},
                {"k", layout({6, 4}).with("x", split(1)).with("z", kFlat), normal}});
    add(first, {{"gain", layout({8}).with("x", split(0)), normal, shape.set("z")}});
    add(first, {{"vector", layout({12}).with("x", split(0)).with("z", kFlat), normal}});
    const int second = store.add_group("second");
    const AxisSet rep = shape.set("rep"), z = shape.set("z"), x = shape.set("x");
    add(second, {{"a", layout({6, 16}).with(rep | x, split(1)), normal, z},
                 {"b", layout({6, 4}).with(x, split(1)), normal, rep | z}});
    add(second, {{"va", layout({16}).with(rep | x, split(0)), normal, z},
                 {"vb", layout({4}).with(x, split(0)), normal, rep | z}});
    add(second, {{"fa", layout({5, 12}).with(rep | x, split(1)).with("z", kFlat), normal},
                 {"fb", layout({5, 4}).with(x, split(1)).with("z", kFlat), normal, rep}});
    add(second, {{"table", layout({11, 5}).padded(0, 16).with("x", split(0)).with("z", kFlat), normal}});
    add(second, {{"gate", layout({4, 3, 4}).with("x", split(0)).with("z", kFlat), normal},
                 {"up", layout({4, 3, 4}).with("x", split(0)).with("z", kFlat), normal}});
    add(second, {{"down", layout({4, 6, 5}).with("x", split(1)), normal, z}});
  }
  void add(int group, const std::vector<SlotPart>& parts) {
    slots.emplace_back(store.add_slot(group, parts), parts);
    groups.push_back(group);
  }
  ParamStore& store;
  std::vector<std::pair<SlotId, std::vector<SlotPart>>> slots;
  std::vector<int> groups;  // groups of the slots
};

double element(const std::string& name, int64_t global, int64_t term) {
  const uint64_t h = std::hash<std::string>()(name) + static_cast<uint64_t>(global * 31 + term * 1009);
  return static_cast<double>((h * 0x9e3779b97f4a7c15u >> 40) % 7) - 3;
}

/// Calls f(index in the slot's local matrix, global index) for the elements of a part that are used on this rank.
template <typename F>
void each_used(const ParamStore& store, const std::vector<SlotPart>& parts, size_t p, F&& f) {
  const AxisSet z = store.mesh_shape().set("z");
  int64_t cols = 0, first = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i == p) first = cols;
    cols += parts[i].layout.box()[-1];
  }
  const bool spread = parts[p].layout.on(2) == kFlat;
  const Layout used = spread ? parts[p].layout.with(z, kReplicate) : parts[p].layout;
  for (const mesh::Run& run : used.runs(store.rank(), {.offset = first, .pitch = cols}))
    for (int64_t i = 0; i < run.length; ++i) f(run.local + i * run.stride, run.global + i);
}

struct OnRank {
  OnRank(comm::World& world, const MeshExtents& grid, DType compute, bool zero)
      : mesh(world, device, grid.shape()), store(device, compute, &mesh, zero), model(store) {
    store.allocate(true);
  }
  device::CpuDevice device{1};
  Arena arena{device, Arena::Mode::heap};  // outlives the gathered weights
  Mesh mesh;
  ParamStore store;
  Model model;
  Meter meter;
  Exec ex{device, arena, meter};
};

const MeshExtents kMeshes[] = {{1, 1, 1, 1}, {1, 1, 2, 1}, {1, 1, 3, 1}, {1, 2, 1, 1}, {1, 1, 2, 2},
                               {2, 1, 1, 1}, {2, 2, 1, 1}, {2, 1, 3, 1}, {2, 2, 2, 1}, {3, 1, 2, 1}};

TEST(SpreadSlots, AreWholeWhileTheyAreUsed) {
  for (const MeshExtents& grid : kMeshes)
    for (const DType type : {DType::f64, DType::f32, DType::bf16}) {
      SCOPED_TRACE(to_string(grid));
      comm::run_on_threads(grid.shape().world_size(), {}, [&](comm::World& world) {
        OnRank rank(world, grid, type, false);
        rank.store.initialize(17);
        device::CpuDevice device(1);
        const auto solo = comm::solo_world();
        Mesh one(*solo, device, MeshExtents{1, 1, 1, 1}.shape());
        ParamStore dense(device, type, &one);
        Model whole(dense);
        dense.allocate(false);
        dense.initialize(17);
        const auto value = [](const Tensor& t, int64_t i) {
          return t.dtype == DType::f64   ? t.as<double>()[i]
                 : t.dtype == DType::f32 ? static_cast<double>(t.as<float>()[i])
                                         : static_cast<double>(static_cast<float>(t.as<bf16>()[i]));
        };
        const auto& slots = rank.model.slots;
        for (size_t s = 0; s < slots.size(); ++s) {
          const WeightCache::Held w = rank.store.weights().hold(rank.ex, slots[s].first);
          const Tensor local = w, all = dense.weight(whole.slots[s].first);
          EXPECT_EQ(local.shape, rank.store.box(slots[s].first));
          int64_t first = 0;
          for (size_t p = 0; p < slots[s].second.size(); ++p) {
            const Shape global = slots[s].second[p].layout.shape();
            each_used(rank.store, slots[s].second, p, [&](int64_t at, int64_t index) {
              const int64_t row = index / global[-1], col = index % global[-1];
              EXPECT_EQ(value(local, at), value(all, row * all.cols() + first + col)) << slots[s].second[p].name;
            });
            first += global[-1];
          }
        }
      });
    }
}

/// Returns the axes along which ranks compute different partial sums of a gradient.
AxisSet partial_axes(const ParamStore& store, const SlotPart& part) {
  return store.mesh_shape().set("data") | store.mesh_shape().set("z") | part.sum_over;
}

/// bad: this rank's partial sum of b has a NaN.
void backward(OnRank& rank, GradSink& sink, int micro, bool last, bool bad = false) {
  sink.begin_micro(last);
  const auto& slots = rank.model.slots;
  for (size_t s = slots.size(); s-- > 0;) {
    const auto& [slot, parts] = slots[s];
    const int uses = parts[0].name == "table" ? 2 : 1;
    for (int use = 0; use < uses; ++use) {
      const params::GradSlot out = sink.slot(rank.ex, slot);
      EXPECT_EQ(out.tensor.shape, rank.store.box(slot));
      double* values = out.tensor.as<double>();
      if (!out.accumulate) std::fill_n(values, out.tensor.count(), 0.0);
      for (size_t p = 0; p < parts.size(); ++p) {
        const int64_t term = rank.mesh.shape().index(rank.mesh.rank(), partial_axes(rank.store, parts[p]));
        each_used(rank.store, parts, p, [&](int64_t at, int64_t global) {
          values[at] += element(parts[p].name, global, term * 10 + micro * 2 + use);
        });
      }
      if (bad && s == 3) values[8] = NAN;  // the first of b's columns, after eight of a's
      if (use + 1 == uses) sink.complete(rank.ex, slot);
    }
    if (s == 0 || rank.model.groups[s - 1] != rank.model.groups[s]) sink.end_group(rank.ex, rank.model.groups[s]);
  }
  sink.end_micro(rank.ex);
}

double expected(const OnRank& rank, const SlotPart& part, int64_t global, int micros) {
  double sum = 0;
  const int terms = rank.mesh.shape().group_size(partial_axes(rank.store, part));
  for (int term = 0; term < terms; ++term)
    for (int micro = 0; micro < micros; ++micro)
      for (int use = 0; use < (part.name == "table" ? 2 : 1); ++use)
        sum += element(part.name, global, term * 10 + micro * 2 + use);
  return sum;
}

TEST(SpreadSlots, GradientsComeHomeAndCountOnce) {
  for (const MeshExtents& grid : kMeshes)
    for (const bool zero : {false, true})
      for (const int micros : {1, 3}) {
        SCOPED_TRACE(format("{} zero {} micro-batches {}", to_string(grid), zero, micros));
        comm::run_on_threads(grid.shape().world_size(), {}, [&](comm::World& world) {
          OnRank rank(world, grid, DType::f64, zero);
          GradSink sink(rank.store);
          sink.prepare(rank.device);
          for (int step = 0; step < 2; ++step) {  // the second step overwrites
            sink.begin_step();
            for (int micro = 0; micro < micros; ++micro) backward(rank, sink, micro, micro + 1 == micros);
            const params::GradNorm norm = sink.finish(rank.ex);
            double squares = 0;
            int64_t checked = 0;
            for (const auto& [slot, parts] : rank.model.slots)
              for (const SlotPart& part : parts)
                for (int64_t i = 0; i < part.layout.shape().count(); ++i)
                  squares += std::pow(expected(rank, part, i, micros), 2);
            EXPECT_DOUBLE_EQ(norm.norm, std::sqrt(squares));
            size_t at = 0;
            for (const auto& [slot, parts] : rank.model.slots)
              for (const SlotPart& part : parts) {
                const params::Param& param = rank.store.params()[at++];
                const params::Group& group = rank.store.groups()[static_cast<size_t>(param.group)];
                const Tensor grad = group.grad;
                for (const mesh::Run& run : mesh::clip_runs(param.runs, group.owned.begin, group.owned.count))
                  for (int64_t i = 0; i < run.length; ++i, ++checked)
                    EXPECT_EQ(grad.as<double>()[group.owned.begin + run.local + i * run.stride],
                              expected(rank, part, run.global + i, micros))
                        << part.name << " " << run.global + i;
              }
            EXPECT_GT(checked, 0);
          }
        });
      }
}

TEST(SpreadSlots, CrossTheWireOncePerUseAndOncePerMicroBatch) {
  const MeshExtents grid{2, 2, 2, 1};
  comm::run_on_threads(grid.shape().world_size(), {}, [&](comm::World& world) {
    OnRank rank(world, grid, DType::f64, false);
    rank.store.initialize(1);
    GradSink sink(rank.store);
    sink.prepare(rank.device);
    sink.begin_step();
    for (int micro = 0; micro < 3; ++micro) {
      for (const auto& [slot, parts] : rank.model.slots) const auto used = rank.store.weights().hold(rank.ex, slot);
      backward(rank, sink, micro, micro == 2);
    }
    sink.finish(rank.ex);
    const auto payload = [&](const char* axis, CommOp op) {
      int64_t sum = 0;
      for (const auto& [key, count] : rank.meter.comm())
        if (rank.mesh.shape().name_of(key.axes) == axis && key.op == op) sum += count.elements;
      return sum;
    };
    EXPECT_EQ(payload("z", CommOp::all_gather), 3 * (6 * 12 + 12 + 16 * 5 + 5 * (6 + 4) + 12 * 8));
    EXPECT_EQ(payload("z", CommOp::reduce_scatter), 3 * (6 * 12 + 12 + 16 * 5 + 5 * (6 + 4) + 12 * 8));
    EXPECT_EQ(payload("z", CommOp::all_reduce), 8 + 6 * 8 + 8 + 120);  // gain; a and va, split in two by rep; down
    EXPECT_EQ(payload("rep+z", CommOp::all_reduce), 6 * 4 + 4);
    const comm::Chunk piece = comm::chunk_of(5 * (6 + 4), 2, rank.mesh.index("z"));
    int64_t shared = 0;  // columns of fb in this rank's piece
    for (int64_t i = piece.begin; i < piece.begin + piece.count; ++i) shared += i % 10 >= 6;
    EXPECT_EQ(payload("rep", CommOp::all_reduce), shared);
    EXPECT_EQ(payload("data", CommOp::all_reduce), rank.store.groups()[0].elements + rank.store.groups()[1].elements);
  });
}

TEST(SpreadSlots, ABadGradientOnOneRankIsNamedOnAll) {
  const MeshExtents grid{1, 2, 2, 1};
  comm::run_on_threads(grid.shape().world_size(), {}, [&](comm::World& world) {
    OnRank rank(world, grid, DType::f64, false);
    GradSink sink(rank.store);
    sink.prepare(rank.device);
    sink.begin_step();
    backward(rank, sink, 0, true, world.rank() == 0);
    EXPECT_EQ(sink.finish(rank.ex).bad_tensor, "b");
  });
}

TEST(SpreadSlots, WhatRanksShareIsEqualBitForBit) {
  // Sums over three replicas depend on their order, and that on an element's position, which must be the same on every
  // rank although shards of flat slots before it differ in size.
  const MeshExtents grid{3, 1, 2, 1};
  std::mutex mutex;
  std::map<int, std::vector<float>> gains;  // by replica and rank
  comm::run_on_threads(grid.shape().world_size(), {}, [&](comm::World& world) {
    device::CpuDevice device(1);
    Mesh mesh(world, device, grid.shape());
    ParamStore store(device, DType::f32, &mesh);
    const int group = store.add_group("group");
    const auto layout = [&](Shape shape) { return Layout(mesh.shape(), shape); };
    const SlotId flat = store.add_slot(group, {{"flat", layout({65}).with("z", kFlat), {}}});
    const SlotId second = store.add_slot(group, {{"second", layout({1001}).with("z", kFlat), {}}});
    const SlotId gain = store.add_slot(group, {{"gain", layout({9000}), {}, mesh.shape().set("z")}});
    store.allocate(true);
    GradSink sink(store);
    sink.prepare(device);
    Arena arena(device, Arena::Mode::heap);
    Meter meter;
    Exec ex{device, arena, meter};
    sink.begin_step();
    sink.begin_micro(true);
    for (const SlotId slot : {flat, second, gain}) {
      const params::GradSlot write = sink.slot(ex, slot);
      const Tensor out = write.tensor;
      for (int64_t i = 0; i < out.count(); ++i)
        out.as<float>()[i] = 1.0f / static_cast<float>(1 + i % 97 + 31 * world.rank());
      sink.complete(ex, slot);
    }
    sink.end_group(ex, group);
    sink.end_micro(ex);
    sink.finish(ex);
    const std::lock_guard lock(mutex);
    const auto values = store.gradient(gain).span<float>();
    gains[world.rank()].assign(values.begin(), values.end());
  });
  for (const auto& [rank, values] : gains) EXPECT_TRUE(values == gains[0]) << rank;
}

TEST(SpreadSlots, AGatherUnderWayOutlivesNothingItReads) {
  // Messages are late: when the exception is thrown, the gather has not begun to copy.
  comm::WorldOptions late;
  late.delay = [](int) { return 0.02; };
  EXPECT_THROW(comm::run_on_threads(2, late,
                                    [](comm::World& world) {
                                      OnRank rank(world, MeshExtents{1, 1, 2, 1}, DType::f64, false);
                                      rank.store.initialize(1);
                                      rank.store.weights().record(
                                          "p", [&] { rank.store.weights().hold(rank.ex, rank.model.slots[0].first); });
                                      rank.store.weights().begin(rank.ex, "p");
                                      throw Error(Code::data, "something else went wrong");
                                    }),
               Error);
}

TEST(SpreadSlots, AGradientThatIsNotCompletedIsAnError) {
  comm::run_on_threads(2, {}, [&](comm::World& world) {
    OnRank rank(world, MeshExtents{1, 1, 2, 1}, DType::f64, false);
    GradSink sink(rank.store);
    sink.prepare(rank.device);
    sink.begin_step();
    sink.begin_micro(true);
    sink.slot(rank.ex, rank.model.slots[0].first);
    sink.end_group(rank.ex, 0);
    EXPECT_THROW(sink.end_micro(rank.ex), Error);
  });
}

}  // namespace
