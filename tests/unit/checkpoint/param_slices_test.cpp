#include "checkpoint/param_slices.h"

#include <gtest/gtest.h>

#include "fixture.h"

namespace trainer::checkpoint {
namespace {

void declare(params::ParamStore& store, bool fused) {
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
  for (const char* suffix : {"m", "v"}) store.keep_state({suffix, DType::f32}, {{all}});
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

  // Both read back element by element through their own runs.
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

}  // namespace
}  // namespace trainer::checkpoint
