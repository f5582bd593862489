#include <gtest/gtest.h>

#include <array>

#include "ops/cpu/onednn_gemm.h"
#include "unit/ops/gemm_problem.h"

namespace trainer::ops {
namespace {

using namespace gemm_test;

constexpr DType kDTypes[] = {DType::f32, DType::bf16};

/// The dtypes oneDNN has here; the path is the same whichever it is.
template <typename F>
void for_each_supported(F&& fn) {
  int ran = 0;
  for (const DType dtype : kDTypes) {
    if (onednn::supports(dtype)) {
      fn(dtype);
      ++ran;
    } else {
      GTEST_LOG_(INFO) << "oneDNN has no " << name_of(dtype) << " products on this CPU: not tested here";
    }
  }
  if (ran == 0) GTEST_SKIP() << "no oneDNN";
}

TEST(OnednnGemm, MatchesDoublePrecisionWithEveryEpilogue) {
  for_each_supported([](DType in) {
    Machine machine(2, device::detect_isa());
    TestExec& ex = machine.ex;
    // The library compiles each product it has not met, for up to a second: sizes take turns.
    constexpr std::array<std::array<int64_t, 3>, 3> kSizes = {{{130, 600, 70}, {40, 51, 30}, {9, 17, 1}}};
    size_t turn = 0;
    for (const DType out : {in, DType::f32})
      for (const Ending ending : kEndings) {
        if (ending == Ending::accumulate && out == DType::bf16) continue;
        for (const bool trans_a : {false, true})
          for (const bool trans_b : {false, true}) {
            const auto [m, n, k] = kSizes[turn++ % kSizes.size()];
            Problem problem({m, n, k, in, out, trans_a, trans_b, ending, 5});
            onednn::product(ex, problem.op);
            problem.expect_result();
          }
      }
  });
}

TEST(OnednnGemm, HasTheSameBitsForEveryThreadCountAndForPackedWeights) {
  for_each_supported([](DType in) {
    for (const bool trans_b : {false, true}) {
      Problem problem({140, 1100, 96, in, in, false, trans_b});
      std::vector<std::byte> first;
      for (const int threads : {1, 2, 3})
        for (const bool packed : {false, true}) {
          Machine machine(threads, device::detect_isa());
          TestExec& ex = machine.ex;
          Buffer weight;
          problem.op.packed_b = {};
          if (packed) {
            weight = Buffer(*machine.device, "packed", {onednn::packed_bytes(in, 96, 1100)}, DType::u8);
            onednn::pack(ex, PackB{problem.op.b, weight, trans_b});
            problem.op.packed_b = weight;
          }
          onednn::product(ex, problem.op);
          if (first.empty()) {
            problem.expect_result();
            first = problem.out.memory;
          }
          EXPECT_EQ(problem.out.memory, first) << "threads " << threads << ", packed " << packed;
        }
    }
  });
}

TEST(OnednnGemm, DryDeviceTakesTheScratchOfTheRealOne) {
  for_each_supported([](DType in) {
    Problem problem({200, 700, 90, in, DType::f32, true, false, Ending::accumulate});
    device::CpuDevice cpu(2);
    device::DryDevice dry(2);
    Arena arena(cpu);
    Meter meter;
    arena.record("product", [&] {
      Exec ex{dry, arena, meter};
      onednn::product(ex, problem.op);
    });
    arena.seal();
    arena.begin("product");
    Exec ex{cpu, arena, meter};
    onednn::product(ex, problem.op);
    arena.end();
    problem.expect_result();
  });
}

}  // namespace
}  // namespace trainer::ops
