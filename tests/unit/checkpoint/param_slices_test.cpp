#include "checkpoint/param_slices.h"

#include <gtest/gtest.h>

#include "fixture.h"

namespace trainer::checkpoint {
namespace {

void declare(params::ParamStore& store, bool fused, DType moments = DType::f32) {
  const int group = store.add_group("block");
  const params::Init normal{params::Init::Kind::normal, 0.1};
  if (fused) {
    store.add_slot(group, {{"q", store.replicated({6, 6}), normal},
                           {"k", store.replicated({6, 3}), normal},
                           {"v", store.replicated({6, 3}), normal}});
  } else {
    for (const auto& [name, width] : {std::pair("v", 3), std::pair("q", 6), std::pair("k", 3)}) {
      store.add_slot(group, {{name, store.replicated({6, width}).padded(0, 8), normal}});
    }
  }
  store.add_slot(group, {{"bias", store.replicated({5}), normal}});
  const comm::Chunk all{0, store.slot_groups()[0].elements};
  for (const char* suffix : {"m", "v"}) store.keep_state({suffix, moments}, {{all}});
  store.allocate(true);
}

TEST(ParamSlices, LoadIntoAnotherLayoutOfTheSameParameters) {
  TempFolder folder;
  device::CpuDevice device(1);
  params::ParamStore saved(device, DType::f32), loaded(device, DType::f32);
  declare(saved, true);
  declare(loaded, false);
  saved.initialize(5);
  for (params::Group& group : saved.groups()) {
    for (int64_t i = 0; i < group.elements; ++i) {
      group.states[0].memory.tensor().as<float>()[i] = static_cast<float>(i);
      group.states[1].memory.tensor().as<float>()[i] = static_cast<float>(-i);
    }
  }
  Snapshot snapshot;
  snapshot.tensors = slices_to_save(saved, true);
  ASSERT_EQ(snapshot.tensors.size(), 12u);
  EXPECT_EQ(snapshot.tensors[1].name, "q#m");
  CheckpointStore store(folder, {}, fast_calls());
  const Reader reader(store.save(snapshot));
  reader.load(slices_to_fill(loaded, true), {});

  // Reads both stores element by element through their own runs.
  const auto values = [](const std::vector<TensorSlice>& slices) {
    std::map<std::string, std::vector<float>> all;
    for (const TensorSlice& slice : slices) {
      std::vector<float>& out = all[slice.name];
      out.resize(static_cast<size_t>(slice.shape.count()));
      for (const mesh::Run& run : slice.runs) {
        std::copy_n(slice.local.as<float>() + run.local, run.length, out.begin() + run.global);
      }
    }
    return all;
  };
  EXPECT_EQ(values(slices_to_save(saved, true)), values(slices_to_fill(loaded, true)));
}

TEST(ParamSlices, MomentsOfADifferentTypeAreRefused) {
  TempFolder folder;
  device::CpuDevice device(1);
  params::ParamStore saved(device, DType::f32), loaded(device, DType::f32);
  declare(saved, true);
  declare(loaded, true, DType::bf16);
  saved.initialize(5);
  Snapshot snapshot;
  snapshot.tensors = slices_to_save(saved, true);
  CheckpointStore store(folder, {}, fast_calls());
  const Reader reader(store.save(snapshot));
  expect_error(Code::checkpoint, {"q#m", "fp32", "bf16"}, [&] { reader.load(slices_to_fill(loaded, true), {}); });
  reader.load(slices_to_fill(loaded, false), {.weights_only = true});  // only the weights are loaded
}

// With two update rules, matrices and vectors have separate state buffers, also where a replica holds only a chunk.
TEST(ParamSlices, StatesOfSomeParametersAreSavedForThoseOnly) {
  TempFolder folder;
  device::CpuDevice device(1);
  const auto declared = [&](params::ParamStore& store) {
    const int group = store.add_group("block");
    const params::Init normal{params::Init::Kind::normal, 0.1};
    store.add_slot(group, {{"w", store.replicated({5, 7}), normal}});
    store.add_slot(group, {{"b", store.replicated({7}), normal}});
    store.add_slot(group, {{"w2", store.replicated({7, 3}), normal}});
    const int64_t b = store.range_of(1).offset, w2 = store.range_of(2).offset, end = store.slot_groups()[0].elements;
    store.keep_state({"momentum", DType::f32}, {{{0, b}, {w2, end - w2}}});
    store.keep_state({"m", DType::f32}, {{{b, w2 - b}}});
    store.allocate(true);
  };
  params::ParamStore saved(device, DType::f32), loaded(device, DType::f32);
  declared(saved);
  declared(loaded);
  saved.initialize(5);
  const params::Group& group = saved.groups()[0];
  EXPECT_EQ(group.states[0].memory.tensor().count() + group.states[1].memory.tensor().count(), group.elements);
  for (const params::State& state : group.states)
    for (int64_t i = 0; i < state.memory.tensor().count(); ++i)
      state.memory.tensor().as<float>()[i] = static_cast<float>(i + 1);
  Snapshot snapshot;
  snapshot.tensors = slices_to_save(saved, true);
  std::vector<std::string> names;
  for (const TensorSlice& slice : snapshot.tensors) names.push_back(slice.name);
  EXPECT_EQ(names, (std::vector<std::string>{"w", "w#momentum", "b", "b#m", "w2", "w2#momentum"}));
  CheckpointStore store(folder, {}, fast_calls());
  Reader(store.save(snapshot)).load(slices_to_fill(loaded, true), {});
  const auto at = [](const params::ParamStore& from, const char* suffix, int64_t begin, int64_t count) {
    const Tensor t = from.groups()[0].state(suffix, {begin, count});
    return std::vector<float>(t.as<float>(), t.as<float>() + count);
  };
  for (const auto& [suffix, slot] : {std::pair("momentum", 0), {"m", 1}, {"momentum", 2}}) {
    const auto [begin, count] = saved.range_of(slot);
    EXPECT_EQ(at(loaded, suffix, begin, count), at(saved, suffix, begin, count)) << suffix << " of slot " << slot;
  }
  EXPECT_EQ(at(loaded, "momentum", saved.range_of(2).offset, 1)[0], static_cast<float>(saved.range_of(1).offset + 1));
  EXPECT_ANY_THROW(group.state("m", {0, 1}));
  EXPECT_ANY_THROW(group.state("momentum", {0, group.elements}));
}

}  // namespace
}  // namespace trainer::checkpoint
