// Which weights are packed for GEMMs, in which memory, and with which results.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "ops/gemm.h"
#include "ops/op_timing.h"
#include "params/param_store.h"

using namespace trainer;
using params::ParamStore;
using params::SlotId;
using params::WeightCache;

namespace {

/// `weights` matrices on a device, each in a group of its own.
struct Rig {
  Rig(device::Device& on, DType compute, const Shape& shape, int weights = 1, bool constant = false)
      : device(on), store(on, compute) {
    for (int i = 0; i < weights; ++i)
      slots.push_back(store.add_slot(store.add_group("group"),
                                     {{format("w{}", i), store.replicated(shape), {params::Init::Kind::normal, 1}}}));
    store.allocate(!constant);
  }
  WeightCache& weights() { return store.weights(); }
  device::Device& device;
  ParamStore store;
  std::vector<SlotId> slots;
  Arena arena{device, Arena::Mode::heap};
  Meter meter;
  Exec ex{device, arena, meter};
};

// Packing writes a copy to memory and reads it again, which does not pay off for one or two small-batch GEMMs. Weights
// that never change are packed for vector kernels too, which read matrices that are not transposed in stored order.
TEST(WeightCache, PacksWhatIsReadOftenOrByManyRows) {
  constexpr int64_t kMany = 4096, kFew = 256;
  const auto packs = [&](device::Isa isa, DType compute, int64_t uses, int64_t rows, bool transposed = true,
                         bool constant = false) {
    device::DryDevice device(1, isa);
    Rig rig(device, compute, {96, 64}, 1, constant);
    rig.weights().expect_micro_batches(uses);
    const WeightCache::Held held = rig.weights().hold(rig.ex, rig.slots[0]);
    const Tensor packed = rig.weights().packed(rig.ex, rig.slots[0], transposed, rows);
    if (packed) {
      EXPECT_EQ(packed.bytes(), ops::packed_bytes(device, compute, transposed ? 64 : 96, transposed ? 96 : 64));
    }
    return static_cast<bool>(packed);
  };
  using device::Isa;
  for (const Isa isa : {Isa::avx512bf16, Isa::amx}) {
    EXPECT_TRUE(packs(isa, DType::bf16, 1, kMany));
    EXPECT_TRUE(packs(isa, DType::bf16, 3, kFew));
    EXPECT_FALSE(packs(isa, DType::bf16, 2, kFew));
    EXPECT_FALSE(packs(isa, DType::f32, 3, kMany)) << "fp32 is never packed";
  }
  EXPECT_FALSE(packs(Isa::avx512, DType::bf16, 3, kMany)) << "no panels of bf16";
  for (const DType compute : {DType::bf16, DType::f32}) {
    EXPECT_TRUE(packs(Isa::avx2, compute, 1, 1, false, true));
    for (const Isa isa : {Isa::avx2, Isa::avx512bf16})
      for (const int64_t rows : {1, 16, 1000}) EXPECT_TRUE(packs(isa, compute, 1, rows, false, true));
    EXPECT_TRUE(packs(Isa::avx2, compute, 1, 16, true, true));
    EXPECT_FALSE(packs(Isa::avx2, compute, 1, 64, true, true)) << "many rows share the packing";
    EXPECT_FALSE(packs(Isa::avx2, compute, 1, 8, true, true)) << "rows of the matrix are dot products' operands";
    EXPECT_FALSE(packs(Isa::avx2, compute, 1000, 1, false, false));
  }
}

TEST(WeightCache, KeepsCopiesOnlyOfWhatIsPackedForMoreThanTwoGemms) {
  // Six weights of 16 MiB, more than the ring holds, each used in both directions.
  constexpr int kWeights = 6;
  constexpr int64_t kSide = 2880, kRing = int64_t{64} << 20;
  const auto bytes_after_two_passes = [&](int64_t micro_batches, int64_t gemms, bool save_memory = false) {
    device::DryDevice device(1, device::Isa::avx512bf16);
    Rig rig(device, DType::bf16, {kSide, kSide}, kWeights);
    rig.weights().expect_micro_batches(micro_batches);
    if (save_memory) rig.weights().save_memory_if_few();
    const bool packs = !save_memory || micro_batches > 2, keeps = micro_batches * gemms > 2;
    for (int pass = 0; pass < 2; ++pass)
      for (const SlotId slot : rig.slots)
        for (const bool transposed : {false, true}) {
          const WeightCache::Held held = rig.weights().hold(rig.ex, slot);
          EXPECT_EQ(static_cast<bool>(rig.weights().packed(rig.ex, slot, transposed, 4096, gemms)), packs);
        }
    const double pass_bytes = static_cast<double>(kWeights * 2 * 2 * 2 * kSide * kSide);  // read and written in bf16
    EXPECT_EQ(rig.meter.of(OpKind::pack).bytes, !packs ? 0 : keeps ? pass_bytes : 2 * pass_bytes);
    const std::map<std::string, device::MemoryUse> used = device.memory();
    return used.contains("packed_weights") ? used.at("packed_weights").current : 0;
  };
  const int64_t all = kWeights * 2 * 2 * kSide * kSide;
  EXPECT_EQ(bytes_after_two_passes(1, 1), kRing);
  EXPECT_EQ(bytes_after_two_passes(2, 1), kRing);
  EXPECT_EQ(bytes_after_two_passes(3, 1), all);
  EXPECT_EQ(bytes_after_two_passes(1, 3), all);
  EXPECT_EQ(bytes_after_two_passes(1, 3, true), 0);
  EXPECT_EQ(bytes_after_two_passes(2, 3, true), 0);
  EXPECT_EQ(bytes_after_two_passes(3, 1, true), all) << "many micro-batches share the copies";
}

// Ten packed matrices of 8 MiB in a ring of 64 MiB, which begins again before the pass ends.
TEST(WeightCache, MatricesPackedInTheRingGiveTheBitsOfUnpackedOnes) {
  if (device::detect_isa() < device::Isa::avx512bf16) GTEST_SKIP() << "no kernels that pack weights for training";
  constexpr int64_t kSide = 2048, kRows = 520;
  device::CpuDevice device(2);
  Rig rig(device, DType::bf16, {kSide, kSide}, 5);
  rig.weights().expect_micro_batches(1);
  const Buffer x(device, "x", {kRows, kSide}, DType::bf16), y(device, "y", {kRows, kSide}, DType::bf16),
      expected(device, "y", {kRows, kSide}, DType::bf16);
  ops::fill_normal(device, x, "x");
  for (const SlotId slot : rig.slots) ops::fill_normal(device, rig.store.stored_weight(slot), format("w{}", slot));
  std::set<const std::byte*> places;
  for (int pass = 0; pass < 2; ++pass)
    for (const SlotId slot : rig.slots)
      for (const bool transposed : {false, true}) {
        const WeightCache::Held weight = rig.weights().hold(rig.ex, slot);
        const Tensor packed = rig.weights().packed(rig.ex, slot, transposed, kRows);
        ASSERT_TRUE(packed);
        places.insert(packed.data);
        ops::Gemm gemm{.a = x, .b = weight, .c = y, .trans_b = transposed, .packed_b = packed};
        ops::run(rig.ex, gemm);
        gemm.c = expected;
        gemm.packed_b = {};
        ops::run(rig.ex, gemm);
        EXPECT_EQ(std::memcmp(y.tensor().data, expected.tensor().data, static_cast<size_t>(y.tensor().bytes())), 0);
      }
  EXPECT_EQ(places.size(), 8u);
}

// Without training, matrices are packed after they are filled, and the stored ones are released.
TEST(WeightCache, PackedConstantMatricesReplaceTheStoredOnes) {
  constexpr int kWeights = 5;
  constexpr int64_t kRows = 3, kIn = 70, kOut = 90;
  const device::Isa isa = device::detect_isa();
  for (const DType compute : {DType::f64, DType::f32, DType::bf16}) {
    device::CpuDevice device(2, isa), training_device(2, isa);
    Rig rig(device, compute, {kIn, kOut}, kWeights, /*constant=*/true),
        training(training_device, compute, {kIn, kOut}, kWeights);
    const int64_t each = kIn * kOut * size_of(compute), packed = ops::packed_bytes(device, compute, kIn, kOut);
    EXPECT_EQ(device.memory_total(), kWeights * each) << "neither master weights nor gradients";

    device::DryDevice dry(2, isa);
    Arena heap(dry, Arena::Mode::heap);
    Exec counting{dry, heap, rig.meter};
    for (int i = 0; i < kWeights - 1; ++i)
      EXPECT_EQ(rig.weights().packed(counting, rig.slots[static_cast<size_t>(i)], false, kRows).bytes(), packed);
    rig.weights().packed(counting, rig.slots[0], true, 16);
    EXPECT_EQ(device.memory_total(), kWeights * each) << "a dry pass precedes the filling of the weights";
    rig.store.initialize(7);
    training.store.initialize(7);
    EXPECT_EQ(device.memory_total(), (kWeights - 1) * packed + each) << "those that the dry pass used are packed";
    EXPECT_LE(device.memory().at("weights").peak, std::max(kWeights * each, (kWeights - 1) * packed + each) + packed);

    const Buffer x(device, "x", {kRows, kIn}, compute), y(device, "y", {kRows, kOut}, compute),
        expected(device, "y", {kRows, kOut}, compute);
    ops::fill_normal(device, x, "x");
    for (const SlotId slot : rig.slots) {
      const WeightCache::Held weight = rig.weights().hold(rig.ex, slot);
      const Tensor form = rig.weights().packed(rig.ex, slot, false, kRows);
      ops::run(rig.ex, ops::Gemm{.a = x, .b = weight, .c = y, .packed_b = form});
      ops::run(rig.ex, ops::Gemm{.a = x, .b = training.store.stored_weight(slot), .c = expected});
      EXPECT_EQ(std::memcmp(y.tensor().data, expected.tensor().data, static_cast<size_t>(y.tensor().bytes())), 0);
      EXPECT_EQ(rig.store.stored_weight(slot).data, nullptr);
      EXPECT_EQ(rig.weights().packed(rig.ex, slot, false, 1000).data, form.data) << "for any number of rows";
    }
    EXPECT_EQ(device.memory().at("weights").current, kWeights * packed);
    EXPECT_THROW(rig.store.refresh_compute(), Error) << "the weights cannot change";
  }
}

}  // namespace
