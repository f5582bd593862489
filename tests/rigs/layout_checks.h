#pragma once
// Checks for layouts of every strategy: masked losses, equal replicas, the gradient norm, checkpoints that other
// layouts load, and generation.
#include <span>

#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "rigs/layouts.h"
#include "rigs/packed_chats.h"
#include "train/replica_check.h"
#include "unit/checkpoint/fixture.h"
#include "verify/compare.h"

namespace trainer::tests {

inline int ranks_of(const config::Config& c) {
  return static_cast<int>(config::ranks_of_replica(c) * std::max<int64_t>(1, c.parallel.data));
}

/// Returns losses and norms of three steps on conversations, of which some targets count. Expects a step to send the
/// bytes that its plan predicts, in which all tokens count.
inline std::vector<double> masked_steps(Tiny& run, const data::TrainingData& chats) {
  const config::Config& c = run.trainer.config();
  const train::BatchSource batches = [&](int64_t sample, int64_t sequences, data::TokenBatch& out) {
    chats.train_batch(sample, sequences, out);
  };
  std::vector<double> found;
  for (int64_t n = 1; n <= 3; ++n) {
    const int64_t first = (n - 1) * c.train.global_batch;
    run.trainer.meter().reset();
    const auto outcome = run.trainer.step({.step = n,
                                           .first_sample = first,
                                           .adam_step = n,
                                           .micro_batches = run.trainer.accumulation(),
                                           .lr = 1e-3,
                                           .unmasked_tokens = chats.counted(first, c.train.global_batch)},
                                          batches);
    EXPECT_EQ(run.trainer.comm_bytes(run.trainer.meter().comm()),
              run.trainer.expected_comm_bytes(run.trainer.comm_bytes_per_step()));
    found.insert(found.end(), {outcome.loss, outcome.norm.norm});
  }
  return found;
}

/// Expects replicas to stay equal, and check_replicas() to detect one flipped bit of a gain on one rank.
inline void expect_replicas_compared(const config::Config& c, int64_t steps) {
  comm::run_on_threads(ranks_of(c), {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, c, DType::f32, 1);
    for (int64_t n = 1; n <= steps; ++n) run.step(n);
    train::check_replicas(run.trainer, steps);
    const params::ParamStore& store = run.trainer.store();
    for (const params::Param& param : store.params())
      if (param.name == "blocks.1.norm2.gain" && world.rank() == 1)
        store.groups()[static_cast<size_t>(param.group)].master.tensor().data[param.runs[0].local * 4] ^= std::byte{1};
    try {
      train::check_replicas(run.trainer, steps + 1);
      ADD_FAILURE() << "the flipped bit was not detected";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("blocks.1.norm2.gain"), std::string::npos) << e.what();
    }
  });
}

/// Padding (of the vocabulary and of shards) and copies are not counted.
inline void expect_norm_counts_every_parameter_once(config::Config c) {
  c.train.global_batch *= 2;  // two micro-batches, so that gradients have memory of their own
  comm::run_on_threads(ranks_of(c), {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, c, DType::f64, 1);
    EXPECT_EQ(verify::wrong_norm_of_ones(run.trainer), "");
  });
}

/// The first layout trains for two steps and saves a checkpoint; each further layout loads that of the previous layout
/// and saves its own. Expects all layouts to hold the same tensors.
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
        checkpoint::Reader(folder.path() / std::to_string(i - 1))
            .load(checkpoint::slices_to_fill(store, true), {.elsewhere = run.trainer.names_elsewhere()});
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

/// Returns the logits after each of three prompts and after two further tokens each, which extend the KV caches
/// together.
inline std::vector<double> logits_of(Tiny& run) {
  using Cache = model::Transformer::Cache;
  train::Trainer& trainer = run.trainer;
  Cache first(run.device, trainer.model()), second(run.device, trainer.model()), third(run.device, trainer.model());
  Arena heap(run.device, Arena::Mode::heap);
  Meter meter;
  Exec ex{run.device, heap, meter};
  std::vector<double> all;
  const auto extend = [&](std::vector<int32_t> ids, const std::vector<Cache*>& caches) {
    const auto rows = static_cast<int64_t>(ids.size()), sequences = static_cast<int64_t>(caches.size());
    const Tensor tokens{reinterpret_cast<std::byte*>(ids.data()), {rows}, DType::i32};
    const Scratch out = trainer.model().extend(ex, {.ids = tokens, .sequences = sequences, .seq_len = rows / sequences},
                                               std::span(caches));
    for (int64_t row = 0; row < sequences; ++row)
      for (int64_t v = 0; v < kTinyVocab; ++v) all.push_back(out.tensor().row_range(row, 1).as<double>()[v]);
  };
  extend({3, 1, 4, 1, 5}, {&first});
  extend({2, 7}, {&second});
  extend({1, 8, 2}, {&third});
  extend({9, 8, 1}, {&first, &second, &third});
  extend({2, 8}, {&first, &third});
  return all;
}

inline void expect_text_continued_as_on_one_rank(const config::Config& c) {
  Tiny single(on_one_rank(c), DType::f64, 1);
  const std::vector<double> expected = logits_of(single);
  comm::run_on_threads(ranks_of(c), {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, c, DType::f64, 1);
    EXPECT_LE(distance(logits_of(run), expected), 1e-12);
  });
}

}  // namespace trainer::tests
