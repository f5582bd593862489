// Attention on bf16 panels, by matrix tiles and by dot products of pairs: on their units if the CPU has them, else in
// plain C++. Both units flush subnormals to zero; the bounds here need no allowance for it.
#include <gtest/gtest.h>

#include "unit/ops/attention_panels.h"
#include "unit/ops/attention_problem.h"

namespace trainer::ops::attention_test {
namespace {

void forward_and_backward(Machine& cpu, Problem<bf16>& x, const AttentionKernels& kernels) {
  own_attention(cpu.ex, x.forward_op(), kernels);
  own_attention(cpu.ex, x.backward_op(), kernels);
}

/// Error bounds: the operands of the second GEMMs and the results themselves are rounded to bf16.
constexpr double kForward = 0x1p-8, kBackward = 0x1p-7;

TEST(AttentionPanels, MatchItsDefinitionForwardAndBackward) {
  // Lengths around panels of 32, blocks of 64 and 128, chunks of 256; key heads shared or not; head sizes that fill
  // steps of 32 terms or do not.
  std::vector<Case> cases;
  for (const int64_t length : {1, 2, 31, 32, 33, 64, 65, 97, 127, 129, 200, 257, 300})
    cases.push_back({{length < 100 ? 2 : 1, length, length, 0, 2, 1, length % 2 == 0 ? 32 : 40}});
  cases.push_back({{1, 600, 600, 0, 1, 1, 8}});
  cases.push_back({{2, 150, 150, 0, 4, 4, 64}, 0, 1, false});
  cases.push_back({{1, 150, 150, 0, 6, 2, 5}});
  cases.push_back({{2, 70, 70, 0, 2, 2, 16}, 0.3});
  cases.push_back({{1, 200, 200, 0, 4, 2, 33}, 0.2});
  cases.push_back({{1, 130, 130, 0, 2, 1, 96}, 0, 4});
  for (const int64_t window : {1, 2, 31, 32, 33, 64, 100, 149, 150, 155})
    cases.push_back({{1, 150, 150, 0, 2, 1, 40}, window == 33 ? 0.2 : 0, 1, true, window});
  cases.push_back({{2, 300, 300, 0, 2, 1, 32}, 0, 1, true, 0, 0.02});
  cases.push_back({{1, 600, 600, 0, 1, 1, 8}, 0, 1, true, 200, 0.01});
  cases.push_back({{1, 600, 600, 0, 2, 1, 32}, 0.1, 1, true, 40, 0.03});
  for (const Panels& set : panels()) {
    Machine cpu(2, set.isa);
    for (const Case& c : cases) {
      SCOPED_TRACE(to_string(c) + ", " + std::string(device::name_of(set.isa)));
      Problem<bf16> x(c);
      const Problem<bf16> before = x;
      forward_and_backward(cpu, x, *set.kernels);
      expect_close(c, before, x, kForward, 1e-5, kBackward);
    }
  }
}

TEST(AttentionPanels, ReadACacheOfAnyLength) {
  for (const Panels& set : panels()) {
    Machine cpu(3, set.isa);
    for (const int64_t queries : {5, 33, 70, 130})
      for (const int64_t keys : {130, 131, 160, 200, 300})
        for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{1, 1}, {4, 2}}) {
          const Case c{{2, queries, keys, keys + 9, heads, kv_heads, 48}};
          SCOPED_TRACE(to_string(c));
          Problem<bf16> x(c);
          own_attention(cpu.ex, x.forward_op(), *set.kernels);
          const Reference<bf16> expected(x, false);
          EXPECT_LE(relative_error(x.out, expected.out), kForward);
          EXPECT_LE(relative_error(x.lse, expected.lse), 1e-5);
        }
    for (const int64_t window : {40, 200})
      for (const int64_t first_query : {0, 1150}) {  // 1150: the last 80 keys are after all queries
        const int64_t first_key = first_query == 0 ? 0 : 1000;
        const Case c{
            {2, 70, 300, 309, 4, 2, 48, false, first_query, first_key}, 0, 1, true, window, first_key == 0 ? 0.05 : 0};
        SCOPED_TRACE(to_string(c));
        Problem<bf16> x(c);
        own_attention(cpu.ex, x.forward_op(), *set.kernels);
        EXPECT_LE(relative_error(x.out, Reference<bf16>(x, false).out), kForward);
      }
  }
}

TEST(AttentionPanels, HaveTheSameBitsWithAMaskThatHidesNothing) {
  for (const Panels& set : panels())
    for (const double dropout : {0.0, 0.2}) {
      Machine cpu(2, set.isa);
      Problem<bf16> plain(Case{{2, 330, 330, 0, 2, 1, 33}, dropout}), masked = plain;
      masked.first.assign(660, 0);
      forward_and_backward(cpu, plain, *set.kernels);
      forward_and_backward(cpu, masked, *set.kernels);
      expect_same_bits(plain, masked);
    }
}

TEST(AttentionPanels, DoNotDependOnTheThreadCount) {
  for (const Panels& set : panels())
    for (const Case& c : {Case{{1, 300, 300, 0, 2, 1, 33}, 0.2}, Case{{3, 130, 130, 0, 4, 4, 16}}}) {
      SCOPED_TRACE(to_string(c));
      std::vector<Problem<bf16>> runs;
      for (const int threads : {1, 2, 5}) {
        SCOPED_TRACE(fmt::format("{} threads", threads));
        Machine cpu(threads, set.isa);
        Problem<bf16> x(c);
        forward_and_backward(cpu, x, *set.kernels);
        runs.push_back(std::move(x));
        expect_same_bits(runs[0], runs.back());
      }
    }
}

// Lanes hold queries, so only the sum along the head dimension depends on the vector width: Σ dO·O, which enters dq and
// dk. The plain set has no FMA and a different exp.
void expect_same_bits_of(Isa unit, const AttentionKernels& narrow_kernels, const AttentionKernels& kernels) {
  for (const Case& c : {Case{{1, 200, 200, 0, 2, 1, 33}, 0.2}, Case{{2, 130, 130, 0, 4, 4, 16}}}) {
    SCOPED_TRACE(to_string(c));
    Machine narrow(2, Isa::avx2), wide(2, unit);
    Problem<bf16> x(c), y(c);
    forward_and_backward(narrow, x, narrow_kernels);
    forward_and_backward(wide, y, kernels);
    EXPECT_TRUE(same_bits(x.out, y.out));
    EXPECT_TRUE(same_bits(x.lse, y.lse));
    EXPECT_TRUE(same_bits(x.dv, y.dv));
  }
}
TEST(AttentionPanels, HaveTheSameBitsOnAvx2AndTheMatrixUnit) {
  if (device::detect_isa() < Isa::amx) GTEST_SKIP() << "needs AMX";
  expect_same_bits_of(Isa::amx, avx2::attention_tiles, avx512::attention_tiles);
}
TEST(AttentionPanels, HaveTheSameBitsOnAvx2AndTheUnitOfPairs) {
  if (device::detect_isa() < Isa::avx512bf16 || !device::available(Isa::avx512bf16))
    GTEST_SKIP() << "needs AVX512-BF16";
  expect_same_bits_of(Isa::avx512bf16, avx2::attention_pairs, avx512::attention_pairs);
}

TEST(AttentionPanels, SurviveVeryLargeScores) {
  for (const Panels& set : panels()) {
    Machine cpu(2, set.isa);
    Problem<bf16> x(Case{{1, 140, 140, 0, 2, 1, 16}, 0, 60});  // scores in the tens of thousands
    forward_and_backward(cpu, x, *set.kernels);
    expect_bounded(x);
  }
}

TEST(AttentionPanels, PassNanOnToTheRowsThatSeeIt) {
  for (const Panels& set : panels())
    for (const int64_t length : {3, 150}) {
      Machine cpu(2, set.isa);
      Problem<bf16> x(Case{{1, length, length, 0, 1, 1, 16}});
      spoil(x, length - 2);
      own_attention(cpu.ex, x.forward_op(), *set.kernels);
      expect_nan_from(x, length - 2);
    }
}

TEST(AttentionPanels, ReplayTheMemoryPlanOfTheirDryRun) {
  for (const Panels& set : panels()) {
    device::CpuDevice device(2, set.isa);
    device::DryDevice dry(2, set.isa);
    Arena arena(device);
    Meter meter, dry_meter;
    Exec ex{device, arena, meter}, dry_ex{dry, arena, dry_meter};
    Problem<bf16> x(Case{{2, 70, 70, 0, 4, 2, 16}});
    const auto step = [&](Exec& exec) {
      own_attention(exec, x.forward_op(), *set.kernels);
      own_attention(exec, x.backward_op(), *set.kernels);
    };
    arena.record("step", [&] { step(dry_ex); });
    arena.seal();
    arena.begin("step");
    step(ex);  // the arena rejects a take that differs from the recorded one
    arena.end();
    EXPECT_LE(relative_error(x.out, Reference<bf16>(x, false).out), kForward);
  }
}

TEST(AttentionPanels, ReadKeysByHead) {
  for (const Panels& set : panels()) {
    Machine cpu(2, set.isa);
    for (const Case& c : {Case{{2, 70, 300, 310, 4, 2, 40}}, Case{{1, 130, 130, 140, 3, 3, 64}, 0, 1, false, 50}}) {
      SCOPED_TRACE(to_string(c));
      Problem<bf16> x(c);
      own_attention(cpu.ex, x.forward_op(), *set.kernels);
      EXPECT_LE(relative_error(x.out, Reference<bf16>(x, false).out), kForward);
      expect_same_bits_by_head(x, [&](const AttentionForward& op) { own_attention(cpu.ex, op, *set.kernels); });
    }
  }
}

// The plan of a pass over an empty cache serves passes that see the keys of earlier ones.
TEST(AttentionPanels, TakeTheSameMemoryForEveryNumberOfKeysInACache) {
  for (const Panels& set : panels()) {
    device::CpuDevice device(2, set.isa);
    device::DryDevice dry(2, set.isa);
    Arena arena(device);
    Meter meter, dry_meter;
    Exec ex{device, arena, meter}, dry_ex{dry, arena, dry_meter};
    const auto of_keys = [](int64_t keys) { return Problem<bf16>(Case{{1, 70, keys, 300, 4, 2, 16}}); };
    arena.record("pass", [&] { own_attention(dry_ex, of_keys(70).forward_op(), *set.kernels); });
    arena.seal();
    for (const int64_t keys : {70, 71, 200, 300}) {
      Problem<bf16> x = of_keys(keys);
      arena.begin("pass");
      own_attention(ex, x.forward_op(), *set.kernels);
      arena.end();
      EXPECT_LE(relative_error(x.out, Reference<bf16>(x, false).out), kForward) << keys << " keys";
    }
  }
}

}  // namespace
}  // namespace trainer::ops::attention_test
