// Every elementwise rule on ranks that are threads has the bits of one rank, given equal gradients, also with ZeRO-1
// and offload, and its runs continue from checkpoints of any layout.
#include "rigs/rule_cases.h"

#include "rigs/layout_cases.h"
#include "rigs/layout_checks.h"
#include "rigs/muon.h"
#include "rigs/offload.h"

namespace trainer::tests {
namespace {

using config::Config;

class RulesOfUpdates : public testing::TestWithParam<RuleCase> {
 protected:
  /// Layouts of two replicas.
  std::vector<Config> layouts() const {
    Config megatron = configure(MegatronLayout{2, 2}), fsdp = sharded(2, 2, config::Arch::llama).config;
    for (Config* c : {&megatron, &fsdp}) GetParam().set(*c);
    return {megatron, fsdp};
  }
};
INSTANTIATE_TEST_SUITE_P(All, RulesOfUpdates, testing::ValuesIn(rule_cases()), [](const auto& each) {
  std::string name = each.param.name;
  std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
  return name;
});

TEST_P(RulesOfUpdates, HaveTheBitsOfOneRankGivenEqualGradients) {
  for (const Config& layout : layouts())
    for (const config::Moments moments : {config::Moments::fp32, config::Moments::bf16})
      for (const DType compute : {DType::f64, DType::f32, DType::bf16}) {
        if (compute == DType::f64 && moments == config::Moments::bf16) continue;
        Config c = layout;
        c.optim.moments = moments;
        const auto updated = [&](const Config& of) {
          Tensors all;
          std::mutex mutex;
          comm::run_on_threads(ranks_of(of), {.timeout_s = 60},
                               [&](comm::World& world) { update_by_formula(&world, of, compute, 3, all, mutex); });
          return all;
        };
        const Tensors one = updated(on_one_rank(c));
        for (const int zero : {0, 1}) {
          SCOPED_TRACE(format("{}, ZeRO-{}, {}, {} states", config::layout_text(c), zero, name_of(compute),
                              moments == config::Moments::bf16 ? "bf16" : "wide"));
          c.parallel.zero_stage = zero;
          EXPECT_TRUE(updated(c) == one);
        }
      }
}

TEST_P(RulesOfUpdates, MoveBetweenLayouts) {
  const std::vector<Config> all = layouts();
  const Config chain[] = {all[0], on_one_rank(all[0]), all[0]};
  expect_same_tensors_in(chain);
  const Config sharded_first[] = {all[1], on_one_rank(all[1]), all[1]};
  expect_same_tensors_in(sharded_first);
}

TEST_P(RulesOfUpdates, ResumeWithTheBitsOfARunThatDidNotStop) {
  Config c = tiny_config();
  GetParam().set(c);
  c.optim.weight_decay = 0.1;
  for (const DType compute : {DType::f32, DType::bf16}) {
    checkpoint::TempFolder folder;
    Tiny whole(c, compute, 2), resumed(c, compute, 2);
    for (int64_t n = 1; n <= 2; ++n) whole.step(n);
    checkpoint::CheckpointStore files(folder.path() / "run", {}, system_calls());
    checkpoint::Snapshot snapshot;
    whole.trainer.store().settle();
    snapshot.tensors = checkpoint::slices_to_save(whole.trainer.store(), true);
    files.save(snapshot);
    checkpoint::Reader(folder.path() / "run").load(checkpoint::slices_to_fill(resumed.trainer.store(), true), {});
    resumed.trainer.store().refresh_compute();
    for (int64_t n = 3; n <= 4; ++n) {
      whole.step(n);
      resumed.step(n);
    }
    EXPECT_TRUE(resumed.state() == whole.state());
  }
}

TEST_P(RulesOfUpdates, OffloadedHaveTheBitsOfUpdatesInPlace) {
  Config c = tiny_config();
  GetParam().set(c);
  for (const DType compute : {DType::f32, DType::bf16}) {
    Tiny usual(c, compute, 2);
    for (int64_t n = 1; n <= 3; ++n) usual.step(n);
    for (config::Offload plan : kOffloadPlans) {
      Config there = c;
      there.offload = plan;
      there.offload.subgroup = 128;
      Tiny offloaded(there, compute, 2);
      for (int64_t n = 1; n <= 3; ++n) offloaded.step(n);
      EXPECT_TRUE(offloaded.state() == usual.state()) << name_of(compute);
    }
  }
}

TEST(ElementwiseRules, AreAllTestedInLayouts) { expect_every_row_in(rule_cases()); }

}  // namespace
}  // namespace trainer::tests
