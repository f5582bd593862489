#pragma once
// What a strategy's layouts must do with each other's checkpoints, and with a text that they continue.
#include <span>

#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "rigs/layouts.h"
#include "unit/checkpoint/fixture.h"

namespace trainer::tests {

inline int ranks_of(const config::Config& c) {
  return static_cast<int>(config::ranks_of_replica(c) * std::max<int64_t>(1, c.parallel.data));
}

/// The first layout trains for two steps and saves; each of the others loads what the one before has saved, and saves
/// it again: all of them hold the same tensors.
inline void expect_same_tensors_in(std::span<const config::Config> layouts) {
  checkpoint::TempFolder folder;
  Tensors saved;
  for (size_t i = 0; i < layouts.size(); ++i) {
    config::Config c = layouts[i];
    c.parallel.zero_stage = 1;
    const auto path = folder.path() / std::to_string(i);
    std::mutex mutex;
    Tensors loaded;
    comm::run_on_threads(ranks_of(c), {.timeout_s = 60}, [&](comm::World& world) {
      Tiny run(&world, c, DType::bf16, 1);
      params::ParamStore& store = run.trainer.store();
      if (i == 0) {
        for (int64_t n = 1; n <= 2; ++n) run.step(n);
      } else {
        checkpoint::Reader(folder.path() / std::to_string(i - 1)).load(checkpoint::slices_to_fill(store, true), {});
        store.refresh_compute();
      }
      {
        const std::lock_guard lock(mutex);
        for (const checkpoint::TensorSlice& slice : checkpoint::slices_to_save(store, true)) collect(loaded, slice);
      }
      checkpoint::CheckpointStore files(path, {}, system_calls(), &world);
      checkpoint::Snapshot snapshot;
      snapshot.tensors = checkpoint::slices_to_save(store, true);
      files.save(snapshot);
    });
    if (i == 0) saved = loaded;
    EXPECT_TRUE(loaded == saved) << i;
  }
}

/// Logits of a prompt and of the tokens after it, which the cache of keys and values continues.
inline std::vector<double> logits_of(Tiny& run) {
  train::Trainer& trainer = run.trainer;
  model::Transformer::Cache cache(run.device, trainer.model());
  Arena heap(run.device, Arena::Mode::heap);
  Meter meter;
  Exec ex{run.device, heap, meter};
  std::vector<double> all;
  for (const std::vector<int32_t>& ids : {std::vector<int32_t>{3, 1, 4, 1, 5}, {9}, {2}}) {
    std::vector<int32_t> copy = ids;
    const auto n = static_cast<int64_t>(ids.size());
    const Tensor tokens{reinterpret_cast<std::byte*>(copy.data()), {n}, DType::i32};
    const Scratch out =
        trainer.model().extend(ex, {.ids = tokens, .sequences = 1, .seq_len = n, .first_position = cache.used}, cache);
    for (int64_t v = 0; v < kTinyVocab; ++v) all.push_back(out.tensor().as<double>()[v]);
  }
  return all;
}

inline void expect_text_continued_as_on_one_rank(const config::Config& c) {
  Tiny alone(on_one_rank(c), DType::f64, 1);
  const std::vector<double> expected = logits_of(alone);
  comm::run_on_threads(ranks_of(c), {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, c, DType::f64, 1);
    EXPECT_LE(distance(logits_of(run), expected), 1e-12);
  });
}

}  // namespace trainer::tests
