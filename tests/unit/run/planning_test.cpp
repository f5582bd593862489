// The settings that the available memory decides, agreed on by all ranks.
#include "run/planning.h"

#include "rigs/messages.h"
#include "rigs/optimus.h"

namespace trainer::tests {
namespace {

TEST(Planning, PanelsAreGatheredUnlessARankIsShortOfMemory) {
  config::Config c = configure(Square{4});
  c.model.d_ff = 393216;  // large weights, small activations
  const auto total = [&](config::Panels panels) {
    config::Config of = c;
    of.parallel.panels = panels;
    setup::Machine machine{.threads = 1, .isa = device::detect_isa(), .compute = DType::f32, .compute_reason = {}};
    machine.ranks = 16;
    machine.rank = 2;  // which panels are in memory at the peak depends on the rank
    return setup::plan_run(of, kTinyVocab, machine, true).total;
  };
  const int64_t gathered = total(config::Panels::gather), ring = total(config::Panels::ring);
  ASSERT_LT(ring, gathered);
  c.parallel.panels = config::Panels::automatic;
  for (const auto& [limit_of_rank_2, expected] : {std::pair{2 * gathered, config::Panels::gather},
                                                  {gathered - 1, config::Panels::ring},
                                                  {ring - 1, config::Panels::ring}}) {
    Warnings log;
    comm::run_on_threads(16, {.timeout_s = 60}, [&](comm::World& world) {
      setup::Machine machine{.threads = 1, .isa = device::detect_isa(), .compute = DType::f32, .compute_reason = {}};
      machine.ranks = 16;
      machine.rank = world.rank();
      machine.memory_limit = world.rank() == 2 ? limit_of_rank_2 : 2 * gathered;
      config::Config chosen = c;
      const setup::RunPlan plan = run::plan_training(world, chosen, kTinyVocab, machine);
      EXPECT_EQ(chosen.parallel.panels, expected) << "rank " << world.rank();
      EXPECT_EQ(plan.total <= machine.memory_limit, limit_of_rank_2 >= ring || world.rank() != 2);
    });
    ASSERT_EQ(log.lines.size(), 1u) << "from the first rank";
    expect_parts(log.lines[0],
                 {"chosen by memory", expected == config::Panels::ring ? "panels ring" : "panels gather"});
  }
}

TEST(PlanTraining, OverlapsUpdatesOnRanksWhereGradientsFitInMemoryOfTheirOwn) {
  config::Config c = tiny_config();
  c.train.global_batch = 2 * c.train.micro_batch;
  c.parallel.data = 2;
  const auto machine_of = [](int rank) {
    setup::Machine machine{.threads = 2, .isa = device::detect_isa(), .compute = DType::f32, .compute_reason = {}};
    machine.ranks = 2;
    machine.rank = rank;
    return machine;
  };
  const auto total = [&](bool overlap) {
    config::Config of = c;
    of.optim.overlap = overlap;
    return setup::plan_run(of, kTinyVocab, machine_of(1), true).total;
  };
  const int64_t own_memory = total(true), shared = total(false);
  ASSERT_LT(shared, own_memory);
  for (const bool given : {true, false})
    for (const int64_t limit : {own_memory, own_memory - 1, shared, shared - 1}) {
      Warnings log;
      comm::run_on_threads(2, {.timeout_s = 60}, [&](comm::World& world) {
        setup::Machine machine = machine_of(world.rank());
        machine.memory_limit = world.rank() == 1 ? limit : 2 * own_memory;
        config::Config chosen = c;
        chosen.optim.overlap = given;
        const setup::RunPlan plan = run::plan_training(world, chosen, kTinyVocab, machine);
        EXPECT_EQ(chosen.optim.overlap, given && machine.memory_limit >= own_memory);
        EXPECT_EQ(plan.total <= machine.memory_limit, machine.memory_limit >= shared);
        if (world.rank() == 1) EXPECT_EQ(plan.total, chosen.optim.overlap ? own_memory : shared);
      });
      EXPECT_TRUE(log.lines.empty()) << "only the first rank tells";
    }
}

}  // namespace
}  // namespace trainer::tests
