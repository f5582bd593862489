#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <thread>

#include "unit/offload/engine_rig.h"

namespace trainer::offload {
namespace {

class EveryType : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, EveryType, ::testing::Values(DType::f64, DType::f32, DType::bf16),
                         [](const auto& param) { return std::string(name_of(param.param)); });

TEST_P(EveryType, AnyScheduleGivesTheSameBits) {
  constexpr int64_t kSteps = 5;
  const std::vector<std::byte> expected = reference(GetParam(), kSteps);
  for (const Fraction share : {Fraction{0, 1}, {1, 10}, {1, 3}, {1, 2}, {2, 3}, {7, 8}, {1, 1}})
    for (const int64_t subgroup : {64, 192, 1 << 20})
      for (const int slots : {1, 2, 3})
        for (const int resident : {0, 1, 99}) {
          Rig rig(GetParam(), 1 + (slots + resident) % 3);
          rig.with_offload({.device_share = share, .slots = slots, .resident = resident},
                           {.subgroup = subgroup, .poison = true});
          for (int64_t t = 1; t <= kSteps; ++t) rig.step(t);
          ASSERT_TRUE(rig.bytes() == expected) << share.num << "/" << share.den << ", subgroups of " << subgroup << ", "
                                               << slots << " slots, " << resident << " resident";
        }
}

TEST(Engine, MomentsInBf16HaveTheSameBitsInEveryPlace) {
  constexpr config::Moments kSmall = config::Moments::bf16;
  for (const DType compute : {DType::f32, DType::bf16}) {
    const std::vector<std::byte> expected = reference(compute, 4, true, false, kSmall);
    EXPECT_LT(expected.size(), reference(compute, 4).size());
    for (const Fraction share : {Fraction{0, 1}, {1, 2}, {1, 1}})
      for (const int64_t subgroup : {64, 192, 1 << 20}) {
        Rig rig(compute, 3, kSmall);
        rig.with_offload({.device_share = share, .slots = 2, .resident = 1}, {.subgroup = subgroup, .poison = true});
        for (int64_t t = 1; t <= 4; ++t) rig.step(t);
        EXPECT_TRUE(rig.bytes() == expected) << share.num << "/" << share.den << ", subgroups of " << subgroup;
      }
  }
}

TEST_P(EveryType, BlockingGivesTheSameBits) {
  const std::vector<std::byte> expected = reference(GetParam(), 4);
  for (const Fraction share : {Fraction{0, 1}, {1, 2}}) {
    Rig rig(GetParam());
    rig.with_offload({.device_share = share, .slots = 2, .blocking = true}, {.subgroup = 192, .poison = true});
    for (int64_t t = 1; t <= 4; ++t) rig.step(t);
    EXPECT_TRUE(rig.bytes() == expected);
  }
}

TEST(Engine, TheLastSubgroupIsBroughtHomeWhenItIsStreamed) {
  const std::vector<std::byte> expected = reference(DType::bf16, 3);
  for (const int64_t subgroup : {64, 192, 1 << 20})
    for (const Fraction share : {Fraction{1, 1}, {1, 2}, {1, 3}}) {  // the last is streamed if den divides count
      Rig rig(DType::bf16);
      rig.with_offload({.device_share = share, .slots = 2}, {.subgroup = subgroup, .poison = true});
      const int count = static_cast<int>(rig.engine->subgroups().size());
      EXPECT_EQ(rig.engine->where().back() == Residency::streamed, count * share.num % share.den == 0);
      for (int64_t t = 1; t <= 3; ++t) rig.step(t);
      EXPECT_TRUE(rig.bytes() == expected);
    }
}

/// During its lifetime, malloc returns memory filled with huge numbers.
struct DirtyMemory {
  DirtyMemory() { mallopt(M_PERTURB, 0x01); }  // bytes 0xfe
  ~DirtyMemory() { mallopt(M_PERTURB, 0); }
};

TEST(Engine, MomentsBeginAtZeroInMemoryThatWasNot) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    const std::vector<std::byte> expected = reference(compute, 1);
    const DirtyMemory dirty;
    for (const Fraction share : {Fraction{0, 1}, {1, 2}, {1, 1}}) {
      Rig rig(compute);
      rig.with_offload({.device_share = share, .slots = 2, .resident = 1}, {.subgroup = 128});
      for (const params::Group& group : rig.store.groups())
        for (const Buffer* moments : {&group.states[0].memory, &group.states[1].memory})
          for (int64_t i = 0; i < group.held.count; ++i) ASSERT_EQ(moments->tensor().as<float>()[i], 0);
      rig.step(1);
      EXPECT_TRUE(rig.bytes() == expected);
    }
  }
}

TEST(Engine, ComputeWeightsAreTheRoundedMasterWeightsInEveryPlace) {
  for (const int resident : {0, 2}) {
    Rig rig(DType::bf16);
    rig.with_offload({.device_share = {1, 2}, .slots = 2, .resident = resident}, {.subgroup = 128});
    rig.begin(1);
    rig.optimizer->step(rig.ex, optim::make_update(rig.rules, 0, 1, 1));  // weights of magnitude 0.02 keep their value
    rig.store.settle();
    for (const params::Group& group : rig.store.groups())
      for (int64_t i = 0; i < group.elements; ++i)
        ASSERT_EQ(group.compute.tensor().as<bf16>()[i].bits, bf16(group.master.tensor().as<float>()[i]).bits)
            << group.name << " " << i;
  }
}

TEST(Engine, GradientsThatGoAsBf16AreRoundedAlikeInEveryPlace) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    const std::vector<std::byte> expected = reference(compute, 4, true, /*round_gradients=*/true);
    EXPECT_FALSE(expected == reference(compute, 4));
    for (const Fraction share : {Fraction{0, 1}, {1, 3}, {2, 3}, {1, 1}})
      for (const int resident : {0, 1}) {
        Rig rig(compute);
        rig.with_offload({.device_share = share, .slots = 2, .resident = resident},
                         {.subgroup = 128, .round_gradients = true, .poison = true});
        EXPECT_EQ(rig.engine->sizes().gradient, 2);
        for (int64_t t = 1; t <= 4; ++t) rig.step(t);
        EXPECT_TRUE(rig.bytes() == expected) << share.num << "/" << share.den << ", " << resident << " resident";
      }
  }
}

/// Returns a function that delays each operation by a time that depends on the seed.
std::function<void(const Operation&)> jitter(uint64_t seed) {
  return [key = philox_key(seed, "jitter"), drawn = std::make_shared<std::atomic<uint64_t>>(0)](const Operation&) {
    for (uint64_t n = philox_at(key, drawn->fetch_add(1)) % 40; n > 0; --n) std::this_thread::yield();
  };
}

TEST(Engine, StreamsThatRunLateFindTheSameBytes) {
  const std::vector<std::byte> expected = reference(DType::bf16, 4);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rig rig(DType::bf16);
    rig.with_offload(
        {.device_share = {2, 3}, .slots = 1 + static_cast<int>(seed % 3), .resident = static_cast<int>(seed / 3 % 3)},
        {.subgroup = 128, .before = jitter(seed), .poison = true});
    for (int64_t t = 1; t <= 4; ++t) rig.step(t);
    ASSERT_TRUE(rig.bytes() == expected) << "seed " << seed;
  }
}

TEST(Engine, ADiscardedStepLeavesEveryByte) {
  const std::vector<std::byte> expected = reference(DType::bf16, 4);
  Rig rig(DType::bf16);
  rig.with_offload({.device_share = {1, 2}, .slots = 2, .resident = 1}, {.subgroup = 128, .poison = true});
  for (int64_t t = 1; t <= 4; ++t) {
    rig.optimizer->begin_step();  // interrupted before its backward pass
    rig.optimizer->discard();
    if (t == 3) {
      const std::vector<std::byte> before = rig.bytes();
      rig.begin(77);  // the norm is not finite
      rig.optimizer->discard();
      EXPECT_TRUE(rig.bytes() == before);
    }
    rig.step(t);
  }
  EXPECT_TRUE(rig.bytes() == expected);
}

TEST(Engine, AnOperationThatFailsEndsTheRunUntilACheckpointIsLoaded) {
  const std::vector<std::byte> expected = reference(DType::bf16, 3);
  for (const bool blocking : {false, true})
    for (int fails_at = 0;; ++fails_at) {
      std::atomic<int> operations{0};
      Rig rig(DType::bf16);
      rig.with_offload({.device_share = {1, 2}, .slots = 2, .resident = 1, .blocking = blocking},
                       {.subgroup = 192,
                        .before =
                            [&](const Operation&) {
                              if (operations++ == fails_at) throw Error(Code::device, "an operation fails");
                            },
                        .poison = true});
      bool failed = false;
      try {
        rig.step(1);
        rig.store.settle();
      } catch (const Error& error) {
        EXPECT_STREQ(error.what(), "an operation fails");
        failed = true;
      }
      if (!failed) break;  // there are no more operations
      ASSERT_LT(fails_at, 200);
      rig.store.forget();
      rig.zero_state();
      rig.store.initialize(5);
      for (int64_t t = 1; t <= 3; ++t) rig.step(t);
      ASSERT_TRUE(rig.bytes() == expected) << "failed at operation " << fails_at;
    }
}

TEST(Engine, WeightsWrittenElsewhereReplaceTheContentsOfSlots) {
  Rig rig(DType::bf16);
  rig.with_offload({.device_share = {1, 1}, .slots = 3, .resident = 1}, {.subgroup = 128, .poison = true});
  for (int64_t t = 1; t <= 3; ++t) rig.step(t);
  rig.store.forget();
  rig.zero_state();
  rig.store.initialize(5);
  for (int64_t t = 1; t <= 3; ++t) rig.step(t);
  EXPECT_TRUE(rig.bytes() == reference(DType::bf16, 3));
}

TEST(Engine, ADryOneTakesTheSameMemory) {
  for (const Fraction share : {Fraction{0, 1}, {1, 2}}) {
    Rig rig(DType::bf16);
    const Placement placement{.device_share = share, .slots = share.num > 0 ? 2 : 0, .resident = 1};
    rig.with_offload(placement, {.subgroup = 192});
    device::DryDevice device(2);
    const std::unique_ptr<device::Device> host = device::make_host(device);
    params::ParamStore store(device, DType::bf16);
    declare(store);
    store.keep_state_on(*host);
    optim::keep_states(store, rig.rules);
    store.allocate(true);
    const Engine dry(store, *rig.rules[0]->elementwise(), placement, {.subgroup = 192});
    EXPECT_EQ(device.memory_total(), rig.device.memory_total());
    EXPECT_EQ(host->memory_total(), rig.host->memory_total());
    int64_t elements = 0, largest = 0;
    for (const params::Group& group : store.groups()) elements += group.elements;
    for (const Subgroup& subgroup : dry.subgroups()) largest = std::max(largest, subgroup.part.count);
    // On the device: bf16 weights, fp32 gradients, slots of p, m and v. On the host: p, m, v, gradients, bounces.
    EXPECT_EQ(device.memory_total(),
              6 * elements + 12 * ((share.num > 0 ? 2 * largest : 0) + dry.subgroups()[0].part.count));
    EXPECT_EQ(host->memory_total(), 16 * elements + kBounces * 2 * largest);
  }
}

TEST(Engine, CountsTheBytesOfItsList) {
  Rig rig(DType::bf16);
  rig.with_offload({.device_share = {1, 2}, .slots = 2}, {.subgroup = 192});
  rig.step(1);
  const Report report = rig.engine->report();
  EXPECT_EQ(report.bytes[static_cast<size_t>(OperationKind::flush)], 4 * report.share.host);
  EXPECT_EQ(report.bytes[static_cast<size_t>(OperationKind::refresh)], 2 * report.share.host);
  EXPECT_EQ(report.bytes[static_cast<size_t>(OperationKind::load)], 12 * report.share.streamed);
  EXPECT_EQ(report.bytes[static_cast<size_t>(OperationKind::drain)], 12 * report.share.streamed);
}

}  // namespace
}  // namespace trainer::offload
