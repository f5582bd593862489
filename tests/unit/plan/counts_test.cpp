// The planner's counts, compared with those of runs: every collective of a step, by axes, operation and type; and
// bytes between host and device; the work of every kind of operator; and whether weights are packed.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>

#include "plan/program.h"
#include "rigs/muon.h"

namespace trainer::tests {
namespace {

using config::OffloadOptimizer;
using config::Recompute;

config::Config model(int64_t accumulation) {
  config::Config c = tiny_config();
  c.model.n_head = c.model.n_kv_head = 4;
  c.model.d_model = 32;
  c.model.d_ff = 64;
  c.model.seq_len = 8;
  c.model.vocab_multiple = 64;
  c.train.micro_batch = 2;
  c.train.global_batch = 4 * accumulation;
  c.parallel.data = 2;
  return c;
}

/// Returns layouts of eight or four ranks with two replicas.
std::vector<config::Config> strategies(int64_t accumulation) {
  std::vector<config::Config> all(4, model(accumulation));
  all[0].parallel.tensor = 2;
  all[1].parallel.strategy = config::StrategyName::optimus_2d;
  all[1].parallel.mesh = {2, 2};
  all[2].parallel.strategy = config::StrategyName::axonn_4d;
  all[2].parallel.grid = {2, 1, 2};
  all[3].parallel.strategy = config::StrategyName::autoddl;
  all[3].parallel.axes = {2, 2};
  all[3].parallel.layer = {
      {.stream = "rr",
       .attention = "cc",
       .hidden = "cc",
       .qkv = "cc",
       .out = "kk",
       .up = "cc",
       .down = "kk",
       .layers = 1},
      {.stream = "rc", .attention = "rc", .hidden = "rc", .qkv = "fc", .out = "fc", .up = "fc", .down = "fk"}};
  all[3].parallel.table = "fv";
  return all;
}

using Counts = std::map<CommKey, std::array<int64_t, 3>>;  // calls, elements, bytes

Counts counts_of(const std::map<CommKey, CommCount>& comm) {
  Counts all;
  for (const auto& [key, count] : comm)
    if (count.calls > 0) all[key] = {count.calls, count.elements, count.wire_bytes};
  return all;
}

/// Calls f(event, times) for the events of N steps of the recorded program.
template <typename F>
void each_event(const plan::StepProgram& step, int64_t steps, F&& f) {
  const auto add = [&](const plan::Program& program, int64_t times) {
    for (const plan::Event& event : program) f(event, times);
  };
  for (const plan::StepProgram::Part& part : step.parts) add(part.program, steps * part.count);
}

Counts predicted(const plan::StepProgram& step, int64_t steps) {
  Counts all;
  each_event(step, steps, [&](const plan::Event& event, int64_t times) {
    if (event.kind != plan::Event::Kind::start) return;
    CommKey key = event.key;
    if (is_scalar_exchange(event)) key.axes = mesh::kControlAxes;  // as meters count them
    auto& [calls, elements, bytes] = all[key];
    calls += times;
    elements += times * event.elements;
    bytes += times * event.wire_bytes;
  });
  return all;
}

using Work = std::map<OpKind, std::array<double, 3>>;  // calls, FLOPs, bytes of memory

/// Returns the work of all kinds of operators except `but`.
Work work_of(const Meter& meter, const std::set<OpKind>& but) {
  Work all;
  for (int i = 0; i < kOpKinds; ++i) {
    const auto kind = static_cast<OpKind>(i);
    const Meter::Entry& entry = meter.of(kind);
    if (entry.calls > 0 && !but.contains(kind))
      all[kind] = {static_cast<double>(entry.calls), entry.flops, entry.bytes};
  }
  return all;
}

Work predicted_work(const plan::StepProgram& step, int64_t steps, const std::set<OpKind>& but) {
  Work all;
  each_event(step, steps, [&](const plan::Event& event, int64_t repeats) {
    if (event.kind != plan::Event::Kind::compute || but.contains(event.op.kind)) return;
    const auto times = static_cast<double>(repeats);
    auto& [calls, flops, bytes] = all[event.op.kind];
    calls += times;
    flops += times * event.op.cost.flops;
    bytes += times * event.op.cost.bytes;
  });
  return all;
}

config::Offload none() { return {}; }
config::Offload on_the_host() {
  config::Offload offload;
  offload.optimizer = OffloadOptimizer::cpu;
  offload.subgroup = 4096;
  return offload;
}
config::Offload half_streamed() {
  config::Offload offload = on_the_host();
  offload.optimizer = OffloadOptimizer::interleaved;
  offload.gpu_fraction = "1/2";
  return offload;
}

/// Trains three steps and compares after the first and the third. Returns true if weights are packed.
bool expect_predicted(const config::Config& c, DType compute = DType::f32) {
  const auto ranks = static_cast<int>(config::ranks_of_replica(c) * c.parallel.data);
  setup::Machine machine;
  machine.ranks = ranks;
  machine.isa = device::detect_isa();
  machine.compute = compute;
  // If the state is on the host, the offload engine updates it, not these operators.
  std::set<OpKind> but;
  if (c.offload.optimizer != OffloadOptimizer::none) but = {OpKind::optimizer, OpKind::grad_norm, OpKind::elementwise};
  const plan::StepProgram step = plan::record_step(c, kTinyVocab, machine);
  comm::run_on_threads(ranks, {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, c, compute, 1);
    run.trainer.meter().reset();
    for (int64_t n = 1; n <= 3; ++n) {
      run.step(
          n, 1e-3, +[] { return false; });
      if (!world.first() || n == 2) continue;
      EXPECT_EQ(counts_of(run.trainer.meter().comm()), predicted(step, n)) << "after step " << n;
      EXPECT_EQ(work_of(run.trainer.meter(), but), predicted_work(step, n, but)) << "after step " << n;
      if (run.trainer.offload() != nullptr) {
        const setup::OffloadWork& work = *step.plan.offload;
        const auto where = offload::residencies(work.placement, static_cast<int>(work.subgroups.size()));
        EXPECT_EQ(run.trainer.offload()->report().bytes,
                  offload::bytes_of(offload::schedule({.residencies = where, .slots = work.placement.slots}),
                                    work.subgroups, work.sizes));
      }
    }
  });
  return predicted_work(step, 1, {}).contains(OpKind::pack);
}

/// Every combination of recomputation and ZeRO with one micro-step, and recomputation with accumulation: these gather
/// weights again. Offload begins when gradients are complete; each kind of it is combined with both numbers of
/// micro-steps, both ZeRO stages and two kinds of recomputation.
struct Case {
  int64_t accumulation = 1;
  Recompute recompute = Recompute::none;
  int64_t zero = 0;
  config::Offload offload = none();
};
std::vector<Case> cases(size_t strategy) {
  const Recompute recomputes[] = {Recompute::none, Recompute::selective, Recompute::full};
  std::vector<Case> all;
  for (size_t i = 0; i < std::size(recomputes); ++i) {
    for (const int64_t zero : {0, 1}) all.push_back({1, recomputes[i], zero});
    all.push_back({3, recomputes[i], static_cast<int64_t>((strategy + i) % 2)});
  }
  size_t next = strategy;
  for (const config::Offload& offload : {half_streamed(), on_the_host()})
    for (const int64_t accumulation : {1, 3}) {
      const bool split = (accumulation == 3) == (offload.optimizer == OffloadOptimizer::cpu);
      all.push_back({accumulation, recomputes[next++ % 3], split, offload});
    }
  return all;
}

TEST(Counts, WeightsArePackedOnceAStep) {
  if (device::detect_isa() < device::Isa::avx512bf16)
    GTEST_SKIP() << "this CPU has no unit for products of bf16, so that weights are not packed";
  for (const config::Config& c : strategies(4)) {
    SCOPED_TRACE(name_of(c.parallel.strategy));
    const bool packs = expect_predicted(c, DType::bf16);
    EXPECT_TRUE(packs || c.parallel.strategy != config::StrategyName::megatron_1d);
  }
}

TEST(Counts, MatricesThatAreKeptAreGatheredOnceAStep) {
  for (const size_t strategy : {2, 3})  // AxoNN-4D and autoddl
    for (const int64_t accumulation : {1, 3}) {
      config::Config c = strategies(accumulation)[strategy];
      SCOPED_TRACE(format("{} x {}", name_of(c.parallel.strategy), accumulation));
      c.parallel.cache_layers = 2;
      expect_predicted(c);
    }
}

TEST(Counts, OfMuonsUpdatesAreThoseOfTheRun) {
  for (const config::Config& c : strategies(1))
    for (const int64_t zero : {0, 1}) {
      SCOPED_TRACE(format("{}, zero {}", name_of(c.parallel.strategy), zero));
      config::Config each = with_muon(c);
      each.parallel.zero_stage = zero;
      expect_predicted(each);
    }
}

TEST(Counts, OfTheRecordedProgramAreThoseOfTheRun) {
  for (size_t strategy = 0; strategy < strategies(1).size(); ++strategy)
    for (const Case& of : cases(strategy)) {
      config::Config c = strategies(of.accumulation)[strategy];
      SCOPED_TRACE(format("{} x {}, recompute {}, zero {}, offload {}", name_of(c.parallel.strategy), of.accumulation,
                          static_cast<int>(of.recompute), of.zero, static_cast<int>(of.offload.optimizer)));
      c.train.recompute = of.recompute;
      c.parallel.zero_stage = of.zero;
      c.offload = of.offload;
      expect_predicted(c);
    }
}

}  // namespace
}  // namespace trainer::tests
