// What Megatron-1D sends and holds: closed forms and lists, against dry runs and these against real ones.
#include "comm/bytes.h"
#include "rigs/megatron.h"

namespace trainer::tests {
namespace {

using config::Arch;
using config::Recompute;

/// Elements passed to collectives over the tensor axis.
std::map<CommOp, int64_t> elements(train::Trainer& trainer, const Meter& meter) {
  std::map<CommOp, int64_t> sums;
  for (const auto& [key, count] : meter.comm())
    if (key.axes == trainer.store().mesh_shape().set("tensor")) sums[key.op] += count.elements;
  return sums;
}

TEST(MegatronCounts, AreTheClosedForms) {
  struct Golden {
    int64_t t, b, s, h, n, layers, v;
    int64_t no_sp, loss, gathered, scattered, per_step;
  };
  // The gathers are those of a head that gathers its input twice, less one of them.
  for (const Golden& g : {Golden{2, 4, 8, 16, 4, 2, 64, 5120, 96, 7680 - 512, 5120, 352},
                          Golden{4, 4, 8, 32, 8, 3, 128, 14336, 96, 21504 - 1024, 14336, 896}})
    for (const bool sequence_parallel : {false, true})
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        config::Config c = tiny_config();
        c.model.n_layer = g.layers;
        c.model.n_head = c.model.n_kv_head = g.n;
        c.model.d_model = g.h;
        c.model.d_ff = 4 * g.h;
        c.model.seq_len = g.s;
        c.model.vocab_multiple = g.v;
        c.train.micro_batch = c.train.global_batch = g.b;
        c.train.recompute = recompute;
        c.parallel.tensor = g.t;
        c.parallel.sequence_parallel = sequence_parallel;
        const int64_t rows = g.b * g.s * g.h, again = recompute == Recompute::full ? g.layers : 0;
        device::DryDevice device(1);
        const auto world = comm::dry_world(static_cast<int>(g.t));
        train::Trainer trainer(device, *world, c, 60, DType::f32, true);
        trainer.plan();
        auto counted = elements(trainer, trainer.meter());
        EXPECT_EQ(rows * (4 * g.layers + 2), g.no_sp);
        if (sequence_parallel) {
          EXPECT_EQ(counted[CommOp::all_gather], g.gathered + 2 * again * rows);
          EXPECT_EQ(counted[CommOp::reduce_scatter], g.scattered + again * rows);
          EXPECT_EQ(counted[CommOp::all_reduce], g.loss + g.per_step);
        } else {
          EXPECT_EQ(counted[CommOp::all_reduce], g.no_sp + g.loss + again * rows);
          EXPECT_EQ(counted.size(), 1u);
        }
        // Forward alone: embedding and two reductions a layer.
        Arena heap(device, Arena::Mode::heap);
        Meter meter;
        Exec ex{device, heap, meter};
        trainer.model().loss(ex,
                             {.ids = {nullptr, {g.b * g.s}, DType::i32},
                              .targets = {nullptr, {g.b * g.s}, DType::i32},
                              .weights = {nullptr, {g.b * g.s}, DType::f32},
                              .sequences = g.b,
                              .seq_len = g.s},
                             {nullptr, {trainer.model().loss_rows({g.b * g.s})}, DType::f64});
        counted = elements(trainer, meter);
        if (sequence_parallel) {
          EXPECT_EQ(counted[CommOp::reduce_scatter], rows * (2 * g.layers + 1));
          EXPECT_EQ(counted[CommOp::all_gather], rows * (2 * g.layers + 1));
          EXPECT_EQ(counted[CommOp::all_reduce], g.loss);
        } else {
          EXPECT_EQ(counted[CommOp::all_reduce], rows * (2 * g.layers + 1) + g.loss);
        }
      }
}

TEST(MegatronMemory, IsWhatTheBlocksSay) {
  // Of one layer between forward and backward, in elements of f32: residual rows n = N/t, all rows N.
  const int64_t t = 4, b = 2, s = 8, h = 32, heads = 8, f = 128, all = b * s;
  for (const bool sequence_parallel : {false, true})
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      const int64_t n = sequence_parallel ? all / t : all;
      const bool keeps = recompute == Recompute::none;
      // All are whole cache lines here but statistics of few rows.
      const int64_t x = n * h, stats = 2 * round_up(n, 16), norm = keeps ? n * h : 0, attention = all * (3 * h + h) / t,
                    lse = b * heads / t * s, pre = all * f / t, z = keeps ? all * f / t : 0;
      const int64_t expected =
          recompute == Recompute::full ? x : x + stats + norm + attention + lse + x + stats + norm + pre + z;
      int64_t saved[2];
      for (const int64_t layers : {2, 3}) {
        config::Config c = tiny_config();
        c.model.n_layer = layers;
        c.model.n_head = c.model.n_kv_head = heads;
        c.model.d_model = h;
        c.model.d_ff = f;
        c.model.seq_len = s;
        c.train.micro_batch = c.train.global_batch = b;
        c.train.recompute = recompute;
        c.parallel.tensor = t;
        c.parallel.sequence_parallel = sequence_parallel;
        device::DryDevice device(1);
        const auto world = comm::dry_world(t);
        train::Trainer trainer(device, *world, c, 60, DType::f32, true);
        Arena arena(device);
        Meter meter;
        Exec ex{device, arena, meter};
        arena.record("forward", [&] {
          model::Transformer::Saved kept(trainer.model());
          trainer.model().forward(ex,
                                  {.ids = {nullptr, {all}, DType::i32},
                                   .targets = {nullptr, {all}, DType::i32},
                                   .weights = {nullptr, {all}, DType::f32},
                                   .sequences = b,
                                   .seq_len = s},
                                  kept);
          const Scratch now = ex.take("now", {1}, DType::f32);
        });
        const auto& taken = arena.programs().at("forward").intervals;
        saved[layers - 2] = 0;
        for (const Arena::Interval& each : taken)
          if (each.last > taken.back().first && each.tag != "now") saved[layers - 2] += each.bytes;
      }
      EXPECT_EQ((saved[1] - saved[0]) / 4, expected) << sequence_parallel << " " << static_cast<int>(recompute);
    }
}

TEST(MegatronMemory, HoldsTwoWholeTensorsAtMostBesideTheShards) {
  // With sequence parallelism what has all token rows and all of H lives only while it is gathered or summed.
  const int64_t t = 4, b = 2, s = 8, h = 32;
  config::Config c = tiny_config();
  c.model.n_layer = 3;
  c.model.n_head = c.model.n_kv_head = 8;
  c.model.d_model = h;
  c.model.d_ff = 4 * h;
  c.model.seq_len = s;
  c.train.micro_batch = c.train.global_batch = b;
  c.parallel.tensor = t;
  device::DryDevice device(1);
  const auto world = comm::dry_world(t);
  train::Trainer trainer(device, *world, c, 60, DType::f32, true);
  trainer.plan();
  int64_t most = 0;
  const int64_t whole = b * s * h * size_of(DType::f32);
  const auto& taken = trainer.arena().programs().at("train").intervals;
  for (const Arena::Interval& at : taken) {
    int64_t live = 0;
    for (const Arena::Interval& each : taken)
      for (const char* tag : {"linear.x", "linear.dx_all", "linear.dy", "linear.partial", "embedding.partial", "rows",
                              "redistribute", "head.dx_all"})
        if (each.tag == tag && each.bytes == whole && each.first <= at.first && at.first < each.last)
          live += each.bytes;
    most = std::max(most, live);
  }
  EXPECT_EQ(most, 2 * whole);
}

TEST(MegatronMemory, IsPredictedForEveryRank) {
  for (const Layout& l : {Layout{2, 2, true}, Layout{4, 1, false, Arch::llama, 1}}) {
    const config::Config c = configure(l);
    comm::run_on_threads(static_cast<int>(l.tensor * l.data), {.timeout_s = 60}, [&](comm::World& world) {
      device::DryDevice dry(1);
      const auto planned = comm::dry_world(world.size(), world.rank());
      train::Trainer plan(dry, *planned, c, kTinyVocab, DType::f32, true);
      plan.plan();
      Tiny run(&world, c, DType::f32, 1);
      for (int64_t n = 1; n <= 2; ++n) run.step(n);
      EXPECT_EQ(run.trainer.memory(), plan.memory()) << "rank " << world.rank();
    });
  }
}

}  // namespace
}  // namespace trainer::tests
