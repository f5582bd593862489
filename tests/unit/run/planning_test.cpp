// The settings that the available memory decides, agreed on by all ranks.
#include "run/planning.h"

#include "rigs/messages.h"
#include "rigs/optimus.h"

namespace trainer::tests {
namespace {

TEST(Planning, PanelsAreGatheredUnlessARankIsShortOfMemory) {
  config::Config c = configure(Square{4});
  c.model.d_ff = 393216;  // large weights, small activations
  const auto total = [&](const char* panels) {
    config::Config of = c;
    of.parallel.panels = panels;
    setup::Machine machine{.threads = 1, .isa = device::detect_isa(), .compute = DType::f32, .compute_reason = {}};
    machine.ranks = 16;
    machine.rank = 2;  // which panels are in memory at the peak depends on the rank
    return setup::plan_run(of, kTinyVocab, machine, true).total;
  };
  const int64_t gathered = total("gather"), ring = total("ring");
  ASSERT_LT(ring, gathered);
  c.parallel.panels = "auto";
  for (const auto& [limit_of_rank_2, expected] :
       {std::pair{2 * gathered, "gather"}, {gathered - 1, "ring"}, {ring - 1, "ring"}}) {
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
    expect_parts(log.lines[0], {"chosen by memory", format("panels {}", expected)});
  }
}

}  // namespace
}  // namespace trainer::tests
