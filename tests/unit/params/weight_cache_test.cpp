// Prefetched all-gathers: which are in flight at which time, which matrices are in memory, and the bytes sent.
#include <gtest/gtest.h>

#include "params/grad_sink.h"

using namespace trainer;
using mesh::kFlat;
using params::GradSink;
using params::ParamStore;
using params::SlotId;
using params::WeightCache;

namespace {

constexpr int64_t kRows = 7, kCols = 5, kElements = kRows * kCols;  // do not divide over two or three ranks

/// Matrices [7, 5] sharded over "z", where element i of matrix s is 100·s + i; and a last one that is not sharded.
struct Rig {
  explicit Rig(comm::World& world, int matrices = 4, int keep = -1)
      : mesh(world, device, mesh::MeshShape({{"data", 1}, {"z", world.size()}})), store(device, DType::f64, &mesh) {
    const int group = store.add_group("group");
    for (int s = 0; s <= matrices; ++s) {
      const mesh::Layout layout(mesh.shape(), {kRows, kCols});
      slots.push_back(store.add_slot(group, {{format("w{}", s), s < matrices ? layout.with("z", kFlat) : layout, {}}}));
    }
    if (keep >= 0) store.weights().keep(slots[static_cast<size_t>(keep)]);
    store.allocate(true);
    for (const params::Param& param : store.params())
      for (const mesh::Run& run : param.runs)
        for (int64_t i = 0; i < run.length; ++i)
          store.groups()[0].master.tensor().as<double>()[run.local + i * run.stride] = value(param, run.global + i);
    store.weights_changed();
  }
  static double value(const params::Param& param, int64_t i) {
    return 100.0 * (param.name[1] - '0') + static_cast<double>(i);
  }
  WeightCache::Held hold(Exec& where, int s) { return store.weights().hold(where, slots[static_cast<size_t>(s)]); }
  /// Holds the matrices one after another. A number with two digits: holds the matrix of the second digit, and during
  /// that the matrix of the first.
  void use(Exec& where, const std::vector<int>& order) {
    for (const int s : order) {
      const WeightCache::Held w = hold(where, s % 10);
      if (s >= 10) use(where, {s / 10});
      const Tensor t = w;
      ASSERT_EQ(t.shape, (Shape{kRows, kCols}));
      if (where.device.dry()) continue;
      for (int64_t i = 0; i < kElements; ++i)
        ASSERT_EQ(t.as<double>()[i], value(store.params()[static_cast<size_t>(s % 10)], i)) << "matrix " << s;
    }
  }
  /// Runs use() as a recorded program; returns the number of matrices that were gathered.
  int64_t run(const std::vector<int>& order) {
    device::DryDevice dry(1);
    Arena heap(dry, Arena::Mode::heap);
    Meter nobodys, planned, real;
    const std::string key = format("{}", programs++);
    Exec first{dry, heap, nobodys}, plan{dry, arena, planned}, ex{device, arena, real};
    store.weights().record(key, [&] { use(first, order); });
    arena.record(key, [&] {
      store.weights().begin(plan, key);
      use(plan, order);
      store.weights().end();
    });
    arena.seal();
    store.weights().forget_kept();  // a dry pass gathered nothing
    arena.begin(key);
    store.weights().begin(ex, key);
    use(ex, order);
    store.weights().end();
    arena.end();
    most_live = most_live_of(key);
    const int64_t gathers = gathered(real);
    if (kept < 0) {
      EXPECT_EQ(gathered(planned), gathers);
    }
    return gathers;
  }
  /// Returns the largest number of tensors that a program has in memory at a time.
  int most_live_of(const std::string& key) const {
    int most = 0;
    const auto& taken = arena.programs().at(key).intervals;
    for (const Arena::Interval& at : taken) {
      int live = 0;
      for (const Arena::Interval& each : taken) live += each.first <= at.first && at.first < each.last;
      most = std::max(most, live);
    }
    return most;
  }
  int64_t gathered(const Meter& meter) const {
    int64_t elements = 0;
    for (const auto& [key, count] : meter.comm()) elements += count.elements;
    EXPECT_EQ(elements % kElements, 0);
    return elements / kElements;
  }
  device::CpuDevice device{1};
  Arena arena{device};
  mesh::Mesh mesh;
  ParamStore store;
  std::vector<SlotId> slots;
  int programs = 0, most_live = 0, kept = -1;
};

TEST(WeightCache, EachUseStartsTheGatherOfTheNext) {
  for (const int ranks : {1, 2, 3})
    comm::run_on_threads(ranks, {}, [&](comm::World& world) {
      Rig rig(world);
      const int64_t once = ranks == 1 ? 0 : 1;
      EXPECT_EQ(rig.run({0, 1, 2, 3, 2, 1, 0}), 7 * once);  // forward and backward
      EXPECT_EQ(rig.most_live, 2 * once);
      EXPECT_EQ(rig.run({0, 4, 1, 4}), 2 * once) << "what is stored whole is in no gather's way";
      EXPECT_EQ(rig.run({}), 0);
    });
}

TEST(WeightCache, TheOverlapIsReal) {
  // While matrix 0 is held, matrix 1 is being gathered: it arrives although rank 0 only waits.
  comm::run_on_threads(2, {}, [&](comm::World& world) {
    Rig rig(world);
    Arena heap(rig.device, Arena::Mode::heap);
    Meter meter;
    Exec ex{rig.device, heap, meter};
    rig.store.weights().record("p", [&] { rig.use(ex, {0, 1}); });
    meter.reset();
    rig.store.weights().begin(ex, "p");
    EXPECT_EQ(rig.gathered(meter), 1) << "begin starts the first";
    {
      const WeightCache::Held w = rig.hold(ex, 0);
      EXPECT_EQ(rig.gathered(meter), 2) << "the first use starts the second";
    }
    { const WeightCache::Held w = rig.hold(ex, 1); }
    EXPECT_EQ(rig.gathered(meter), 2);
    rig.store.weights().end();
  });
}

TEST(WeightCache, AUseMayPutOffTheGatherOfTheNext) {
  comm::run_on_threads(2, {}, [&](comm::World& world) {
    Rig rig(world);
    Arena heap(rig.device, Arena::Mode::heap);
    Meter meter;
    Exec ex{rig.device, heap, meter};
    WeightCache& weights = rig.store.weights();
    weights.record("p", [&] { rig.use(ex, {0, 1}); });
    meter.reset();
    weights.begin(ex, "p");
    WeightCache::Held first = weights.hold(ex, rig.slots[0], WeightCache::Next::later);
    EXPECT_EQ(rig.gathered(meter), 1);
    first.release();
    first.release();  // does nothing
    weights.prefetch(ex);
    weights.prefetch(ex);  // it is in flight already
    EXPECT_EQ(rig.gathered(meter), 2);
    { const WeightCache::Held second = rig.hold(ex, 1); }
    weights.end();
    weights.begin(ex, "p");
    { const WeightCache::Held again = weights.hold(ex, rig.slots[0], WeightCache::Next::later); }
    rig.use(ex, {1});  // starts its own gather
    EXPECT_EQ(rig.gathered(meter), 4);
    weights.end();
  });
}

TEST(WeightCache, WhatIsHeldOrNextIsGatheredOnce) {
  comm::run_on_threads(2, {}, [&](comm::World& world) {
    Rig rig(world);
    EXPECT_EQ(rig.run({0, 0, 1, 1, 1, 2}), 3);
    EXPECT_EQ(rig.most_live, 2);
    EXPECT_EQ(rig.run({00, 11, 1, 2}), 3) << "within a use of itself";
    EXPECT_EQ(rig.run({0, 31, 2}), 4) << "another within a use";
    EXPECT_EQ(rig.most_live, 3);
    rig.store.weights().set_gather_ahead(false);
    EXPECT_EQ(rig.run({0, 1, 1, 2, 0}), 4) << "the same without gathers ahead";
    EXPECT_EQ(rig.most_live, 1);
  });
}

TEST(WeightCache, WhatIsKeptIsGatheredOnceUntilTheWeightsChange) {
  comm::run_on_threads(3, {}, [&](comm::World& world) {
    Rig rig(world, 3, /*keep=*/1);
    rig.kept = 1;
    EXPECT_EQ(rig.run({0, 1, 2, 1, 0}), 4);
    Arena heap(rig.device, Arena::Mode::heap);
    Meter meter;
    Exec ex{rig.device, heap, meter};
    rig.use(ex, {0, 1, 1});
    EXPECT_EQ(rig.gathered(meter), 1);
    rig.store.weights_changed();
    rig.use(ex, {1, 1});
    EXPECT_EQ(rig.gathered(meter), 2);
    rig.store.weights().forget_kept();
    rig.use(ex, {1});
    EXPECT_EQ(rig.gathered(meter), 3);
  });
}

TEST(WeightCache, AUseThatWasNotRecordedIsAnError) {
  comm::run_on_threads(2, {}, [&](comm::World& world) {
    Rig rig(world);
    Arena heap(rig.device, Arena::Mode::heap);
    Meter meter;
    Exec ex{rig.device, heap, meter};
    rig.store.weights().record("p", [&] { rig.use(ex, {0, 1}); });
    rig.store.weights().begin(ex, "p");
    EXPECT_THROW(rig.hold(ex, 2), Error);
    rig.use(ex, {0});
    EXPECT_THROW(rig.store.weights().end(), Error);
    rig.use(ex, {1});
    rig.store.weights().end();
    EXPECT_THROW(rig.store.weights().keep(0), Error) << "after the memory was taken";
  });
}

TEST(GradSink, HoldsTwoOutgoingGradientsAtMost) {
  for (const bool overlap : {true, false})
    comm::run_on_threads(2, {}, [&](comm::World& world) {
      Rig rig(world);
      GradSink sink(rig.store, {.overlap = overlap});
      sink.prepare(rig.device);
      device::DryDevice dry(1);
      const auto backward = [&](Exec& ex) {
        sink.begin_step();
        sink.begin_micro(true);
        for (int s = 4; s >= 0; --s) {
          const params::SlotId slot = rig.slots[static_cast<size_t>(s)];
          const params::GradSlot dw = sink.slot(ex, slot);
          for (int64_t i = 0; i < kElements && !ex.device.dry(); ++i)
            dw.tensor.as<double>()[i] = static_cast<double>((world.rank() + 1) * (i + 100 * s));
          sink.complete(ex, slot);
        }
        sink.end_group(ex, 0);
        sink.end_micro(ex);
      };
      Meter planned, real;
      Exec plan{dry, rig.arena, planned}, ex{rig.device, rig.arena, real};
      rig.arena.record("backward", [&] { backward(plan); });
      rig.arena.seal();
      rig.arena.begin("backward");
      backward(ex);
      rig.arena.end();
      EXPECT_EQ(rig.arena.programs().at("backward").intervals.size(), 4u);
      EXPECT_EQ(rig.most_live_of("backward"), overlap ? 2 : 1);
      for (const params::Param& param : rig.store.params()) {
        if (param.name == "w4") continue;  // not sharded: it needs no reduction over z
        for (const mesh::Run& run : param.runs)
          for (int64_t i = 0; i < run.length; ++i)
            EXPECT_EQ(rig.store.groups()[0].grad.as<double>()[run.local + i], 3 * Rig::value(param, run.global + i));
      }
    });
}

TEST(GradSink, ReportsWhenAGroupIsReduced) {
  for (const bool zero : {false, true})
    for (const int replicas : {1, 2, 3})
      comm::run_on_threads(replicas, {}, [&](comm::World& world) {
        device::CpuDevice device(1);
        mesh::Mesh mesh(world, device, mesh::MeshShape({{"data", replicas}}));
        ParamStore store(device, DType::f64, &mesh, zero);
        std::vector<SlotId> slots;
        for (int g = 0; g < 4; ++g)
          slots.push_back(store.add_slot(store.add_group(format("{}", g)),
                                         {{format("w{}", g), store.replicated({kRows, kCols}), {}}}));
        store.allocate(true);
        GradSink sink(store);
        sink.prepare(device);
        std::vector<int> reduced;
        int done = 4;
        sink.on_group_reduced([&](Exec&, int group) {
          reduced.push_back(group);
          if (done > 0) {
            EXPECT_GE(group, done + (replicas == 1 ? 0 : 1)) << "its sum has had a group's time";
          }
          const params::Group& of = store.groups()[static_cast<size_t>(group)];
          for (int64_t i = of.owned.begin; i < std::min(of.owned.begin + of.owned.count, kElements); ++i)
            EXPECT_EQ(of.grad.as<double>()[i], replicas * (replicas + 1) / 2 * (group + 1));
        });
        Arena heap(device, Arena::Mode::heap);
        Meter meter;
        Exec ex{device, heap, meter};
        for (int step = 0; step < 2; ++step) {
          reduced.clear();
          sink.begin_step();
          for (const bool last : {false, true}) {
            sink.begin_micro(last);
            for (done = 3; done >= 0; --done) {
              {
                const params::GradSlot dw = sink.slot(ex, slots[static_cast<size_t>(done)]);
                for (int64_t i = 0; i < kElements; ++i) {
                  double& element = dw.tensor.as<double>()[i];
                  element = (dw.accumulate ? element : 0) + 0.5 * (world.rank() + 1) * (done + 1);
                }
                sink.complete(ex, slots[static_cast<size_t>(done)]);
              }
              sink.end_group(ex, done);
            }
            sink.end_micro(ex);
            if (!last) {
              EXPECT_TRUE(reduced.empty());
            }
          }
          sink.finish(ex);
          EXPECT_EQ(reduced, (std::vector<int>{3, 2, 1, 0}));
        }
      });
}

}  // namespace
