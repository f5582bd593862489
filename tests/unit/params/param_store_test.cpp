#include "params/param_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/philox.h"
#include "params/grad_sink.h"

using namespace trainer;
using params::Init;
using params::ParamStore;

namespace {

// q, k, v of different widths side by side, a padded table, a vector.
struct Store {
  Store(device::Device& device, DType compute, ParamStore::Gradients gradients = ParamStore::Gradients::own_memory)
      : store(device, compute) {
    const int group = store.add_group("block");
    qkv = store.add_slot(group, {{"q", store.replicated({5, 6}), {Init::Kind::normal, 0.02}},
                                 {"k", store.replicated({5, 3}), {Init::Kind::normal, 0.02}},
                                 {"v", store.replicated({5, 3}), {Init::Kind::normal, 0.5}}});
    gain = store.add_slot(group, {{"gain", store.replicated({7}), {Init::Kind::ones, 0}}});
    table = store.add_slot(group, {{"wte", store.replicated({11, 4}).padded(0, 16), {Init::Kind::normal, 0.1}}});
    store.allocate(gradients);
  }
  ParamStore store;
  int qkv, gain, table;
};

TEST(ParamStore, InitialValuesDependOnNameAndGlobalIndexOnly) {
  device::CpuDevice device(2);
  Store s(device, DType::f64);
  s.store.initialize(99);
  const Tensor qkv = s.store.weight(s.qkv);
  ASSERT_EQ(qkv.shape, (Shape{5, 12}));
  const auto expect = [&](const char* name, double std, int64_t index) {
    return std * philox_normals(philox_key(99, name), static_cast<uint64_t>(index / 4))[static_cast<size_t>(index % 4)];
  };
  for (int64_t r = 0; r < 5; ++r)
    for (int64_t c = 0; c < 12; ++c) {
      const double got = qkv.as<double>()[r * 12 + c];
      if (c < 6)
        EXPECT_EQ(got, expect("q", 0.02, r * 6 + c));
      else if (c < 9)
        EXPECT_EQ(got, expect("k", 0.02, r * 3 + c - 6));
      else
        EXPECT_EQ(got, expect("v", 0.5, r * 3 + c - 9));
    }
  for (const double x : s.store.weight(s.gain).span<double>()) EXPECT_EQ(x, 1.0);
  const auto table = s.store.weight(s.table).span<double>();
  ASSERT_EQ(table.size(), 64u);
  for (size_t i = 0; i < 44; ++i) EXPECT_EQ(table[i], expect("wte", 0.1, static_cast<int64_t>(i)));
  for (size_t i = 44; i < 64; ++i) EXPECT_EQ(table[i], 0.0) << "padding";
}

TEST(ParamStore, ValuesAreRoundedOnceInEveryType) {
  device::CpuDevice device(1);
  Store wide(device, DType::f64), single(device, DType::f32), half(device, DType::bf16);
  for (Store* s : {&wide, &single, &half}) s->store.initialize(3);
  const auto d = wide.store.weight(wide.qkv).span<double>();
  const auto f = single.store.weight(single.qkv).span<float>();
  const auto h = half.store.weight(half.qkv).span<bf16>();
  for (size_t i = 0; i < d.size(); ++i) {
    EXPECT_EQ(f[i], static_cast<float>(d[i]));
    EXPECT_EQ(h[i].bits, bf16(f[i]).bits);
  }
}

TEST(ParamStore, CountsTrueElementsAndAlignsSlots) {
  device::DryDevice device(2);
  Store s(device, DType::bf16);
  EXPECT_EQ(s.store.parameter_count(), 5 * 12 + 7 + 11 * 4);
  for (const int slot : {s.qkv, s.gain, s.table}) EXPECT_EQ(s.store.range_of(slot).offset % 32, 0);
  // master weights and gradient in f32, compute weights in bf16; the optimizer adds its states
  EXPECT_EQ(device.memory_total(), s.store.groups()[0].elements * (2 * 4 + 2));

  device::DryDevice other(2);
  const Store constant(other, DType::bf16, ParamStore::Gradients::none);
  EXPECT_EQ(other.memory_total(), (5 * 12 + 7 + 16 * 4) * 2) << "only compute weights, without alignment";
}

TEST(ParamStore, ConstantWeightsAreTheComputeWeightsOfTraining) {
  device::CpuDevice device(2);
  for (const DType compute : {DType::f64, DType::f32, DType::bf16}) {
    Store training(device, compute), constant(device, compute, ParamStore::Gradients::none);
    EXPECT_FALSE(training.store.is_constant());
    EXPECT_TRUE(constant.store.is_constant());
    training.store.initialize(11);
    constant.store.initialize(11);
    for (const int slot : {training.qkv, training.gain, training.table}) {
      const Tensor expected = training.store.weight(slot), found = constant.store.weight(slot);
      ASSERT_EQ(to_string(found), to_string(expected));
      EXPECT_EQ(std::memcmp(found.data, expected.data, static_cast<size_t>(expected.bytes())), 0) << name_of(compute);
    }
  }
}

TEST(GradSink, FirstWriteOverwritesLaterOnesAdd) {
  device::CpuDevice device(1);
  Store s(device, DType::f32);
  params::GradSink sink(s.store);
  Arena arena(device, Arena::Mode::heap);
  Meter meter;
  Exec ex{device, arena, meter};
  for (int step = 0; step < 2; ++step) {
    sink.begin_step();
    EXPECT_FALSE(sink.slot(ex, s.qkv).accumulate);
    EXPECT_TRUE(sink.slot(ex, s.qkv).accumulate);
    EXPECT_FALSE(sink.slot(ex, s.table).accumulate);
  }
}

TEST(GradSink, NormIsOfAllGroupsAndNamesTheFirstBadTensor) {
  device::CpuDevice device(2);
  Store s(device, DType::f32);
  params::GradSink sink(s.store);
  sink.prepare(device);
  Arena arena(device, Arena::Mode::heap);
  Meter meter;
  Exec ex{device, arena, meter};
  for (float& x : s.store.gradient(s.qkv).span<float>()) x = 3;
  s.store.gradient(s.gain).span<float>()[6] = 4;
  const double expected = std::sqrt(60 * 9 + 16.0);
  params::GradNorm norm = sink.finish(ex);
  EXPECT_TRUE(norm.is_finite());
  EXPECT_DOUBLE_EQ(norm.norm, expected);
  EXPECT_DOUBLE_EQ(norm.clip_factor(1.0), 1.0 / (expected + 1e-6));
  EXPECT_EQ(norm.clip_factor(1e9), 1.0);
  EXPECT_EQ(norm.clip_factor(0), 1.0);
  sink.begin_step();
  s.store.gradient(s.qkv).span<float>()[1 * 12 + 7] = std::nanf("");
  s.store.gradient(s.table).span<float>()[0] = INFINITY;
  norm = sink.finish(ex);
  EXPECT_FALSE(norm.is_finite());
  EXPECT_EQ(norm.bad_tensor, "k");
}

TEST(GradSink, NamesTheMatrixOfATensorOfSeveral) {
  device::CpuDevice device(1);
  ParamStore store(device, DType::f64);
  const auto slot = store.add_slot(
      store.add_group("block"), {{"gate", store.replicated({3, 2, 4}), {}}, {"up", store.replicated({3, 2, 4}), {}}});
  store.allocate(ParamStore::Gradients::own_memory);
  params::GradSink sink(store);
  sink.prepare(device);
  Arena arena(device, Arena::Mode::heap);
  Meter meter;
  Exec ex{device, arena, meter};
  ASSERT_EQ(store.box(slot), (Shape{6, 8}));
  store.gradient(slot).as<double>()[5 * 8 + 6] = INFINITY;
  EXPECT_EQ(sink.finish(ex).bad_tensor, "up[2]");
}

TEST(GradSink, RejectsWritesToAGroupThatHasEnded) {
  device::CpuDevice device(1);
  Store s(device, DType::f32);
  params::GradSink sink(s.store);
  sink.prepare(device);
  Arena arena(device, Arena::Mode::heap);
  Meter meter;
  Exec ex{device, arena, meter};
  const auto micro = [&](bool last) {
    sink.begin_micro(last);
    for (const int slot : {s.table, s.gain, s.qkv}) sink.slot(ex, slot);
    sink.end_group(ex, 0);
    sink.end_micro(ex);
  };
  for (int step = 0; step < 2; ++step) {
    sink.begin_step();
    micro(false);
    micro(true);
    EXPECT_THROW(sink.slot(ex, s.gain), Error);
    EXPECT_THROW(sink.end_group(ex, 0), Error);
    sink.finish(ex);
    EXPECT_THROW(sink.slot(ex, s.gain), Error);
  }
}

TEST(GradSink, WaitsForUpdatesThatReadAGradientBeforeItIsWritten) {
  struct Owner final : params::StateOwner {
    void await(int group) override { awaited.push_back(group); }
    void settle() override {}
    void forget() override {}
    std::vector<int> awaited;
  };
  device::CpuDevice device(1);
  for (const auto gradients : {ParamStore::Gradients::own_memory, ParamStore::Gradients::arena}) {
    Store s(device, DType::f32, gradients);
    Owner owner;
    s.store.set_state_owner(&owner);
    params::GradSink sink(s.store);
    sink.prepare(device);
    Arena heap(device, Arena::Mode::heap);
    Meter meter;
    Exec ex{device, heap, meter};
    sink.begin_step();
    EXPECT_TRUE(owner.awaited.empty());
    sink.slot(ex, s.gain);
    EXPECT_EQ(owner.awaited, std::vector<int>{0});
    s.store.set_state_owner(nullptr);
  }
}

TEST(GradSink, ClearsOnlyTheElementsBetweenSlotsInMemoryOfTheArena) {
  device::CpuDevice device(1);
  device::DryDevice dry(1);
  Store s(device, DType::f32, ParamStore::Gradients::arena);
  params::GradSink sink(s.store);
  sink.prepare(device);
  Arena arena(device);
  Meter meter;
  Exec plan{dry, arena, meter}, ex{device, arena, meter};
  const auto place = [&](Exec& on) {
    sink.begin_step();
    for (const int slot : {s.table, s.gain, s.qkv}) EXPECT_FALSE(sink.slot(on, slot).accumulate);
  };
  arena.record("step", [&] { place(plan); });
  arena.seal();
  std::vector<char> in_slot(static_cast<size_t>(s.store.groups()[0].elements));
  for (const int slot : {s.qkv, s.gain, s.table})
    std::fill_n(in_slot.begin() + s.store.range_of(slot).offset, s.store.range_of(slot).count, char{1});
  ASSERT_LT(std::count(in_slot.begin(), in_slot.end(), 1), s.store.groups()[0].elements);
  for (const bool again : {false, true}) {
    arena.begin("step");
    place(ex);
    const auto all = s.store.groups()[0].grad.span<float>();
    ASSERT_EQ(all.size(), in_slot.size());
    for (size_t i = 0; i < all.size(); ++i) {
      if (in_slot[i] == 0) {
        EXPECT_EQ(all[i], 0) << i;
      } else if (again) {
        EXPECT_TRUE(std::isnan(all[i])) << i << " belongs to a slot, but was cleared";
      }
    }
    std::fill(all.begin(), all.end(), std::nanf(""));  // activations leave anything there
    arena.end();
  }
}

}  // namespace
