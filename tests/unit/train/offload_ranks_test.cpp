// Optimizer offload on many ranks: the same bits as without it, plans that differ between ranks, late messages,
// gradients that are not finite, and checkpoints that other numbers of replicas resume.
#include <gtest/gtest.h>

#include <fstream>

#include "rigs/layout_checks.h"
#include "rigs/offload.h"

namespace trainer::tests {
namespace {

using config::OffloadOptimizer;

/// Megatron over two ranks, two replicas, with and without a split state.
config::Config on_four_ranks(int64_t zero_stage) {
  config::Config c = tiny_config();
  c.model.n_head = c.model.n_kv_head = 2;
  c.model.seq_len = 12;
  c.parallel.tensor = 2;
  c.parallel.data = 2;
  c.parallel.zero_stage = zero_stage;
  return c;
}

TEST(OffloadOnRanks, EveryPlanGivesTheBitsOfNoneWithAndWithoutASplitState) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    const Result expected = train(on_four_ranks(0), compute, 4);
    for (const int64_t zero_stage : {0, 1})
      expect_bits_with_every_plan(expected, on_four_ranks(zero_stage), compute, 4);
  }
}

TEST(OffloadOnRanks, BytesOfAStepAreThoseOfNone) {
  for (const int64_t zero_stage : {0, 1}) {
    const Result none = train(on_four_ranks(zero_stage), DType::bf16, 1);
    for (const config::Offload& plan : kOffloadPlans) {
      const Result now = train(offloaded(on_four_ranks(zero_stage), plan), DType::bf16, 1);
      EXPECT_EQ(now.measured, none.measured);
      EXPECT_EQ(now.predicted, none.predicted);
    }
  }
}

/// Hashes the order of a rank's collectives.
class OrderOfCollectives final : public Recorder {
 public:
  void add_operator(const OpCall&) override {}
  int64_t add_collective(const CommKey& key, uint8_t queue, int64_t elements, int64_t, bool) override {
    const auto op = static_cast<uint64_t>(key.op), dtype = static_cast<uint64_t>(key.dtype);
    for (const uint64_t word : {uint64_t{key.axes}, op, dtype, uint64_t{queue}, static_cast<uint64_t>(elements)})
      hash = (hash ^ word) * 1099511628211u;
    return ++count;
  }
  void add_wait(int64_t) override {}
  uint64_t hash = 14695981039346656037u;
  int64_t count = 0;
};

TEST(OffloadOnRanks, AThousandStepsWithAPlanForEachRankAndLateMessagesKeepOneOrderOfCollectives) {
  config::Config c = on_four_ranks(1);
  c.model.n_layer = 1;
  c.parallel.tensor = 1;
  c.parallel.data = 4;
  c.train.micro_batch = 1;
  constexpr int64_t kSteps = 1000;
  const Result expected = train(c, DType::bf16, kSteps);
  const char* shares[] = {"0", "1/3", "1", "1/2"};
  Tensors state;
  OrderOfCollectives orders[4];
  std::mutex mutex;
  comm::WorldOptions options{.timeout_s = 60};
  options.delay = [n = std::make_shared<std::atomic<uint64_t>>(0)](int) {
    return 1e-5 * static_cast<double>(philox_at(philox_key(3, "delay"), n->fetch_add(1)) % 10);
  };
  comm::run_on_threads(4, options, [&](comm::World& world) {
    const config::Offload own{.optimizer = OffloadOptimizer::interleaved,
                              .gpu_fraction = shares[world.rank()],
                              .subgroup = 128 << world.rank(),
                              .slots = 1 + world.rank() % 3};
    Tiny run(&world, offloaded(c, own), DType::bf16, 1);
    run.trainer.meter().recorder = &orders[world.rank()];
    for (int64_t n = 1; n <= kSteps; ++n)
      ASSERT_EQ(run.step(n).loss, expected.losses[static_cast<size_t>(n - 1)]) << "rank " << world.rank();
    run.trainer.meter().recorder = nullptr;
    const std::lock_guard lock(mutex);
    for (const checkpoint::TensorSlice& slice : checkpoint::slices_to_save(run.trainer.store(), true))
      collect(state, slice);
  });
  EXPECT_TRUE(state == expected.state);
  for (const OrderOfCollectives& order : orders) {
    EXPECT_EQ(order.hash, orders[0].hash);
    EXPECT_EQ(order.count, orders[0].count);
  }
  EXPECT_GE(orders[0].count, kSteps * 4);  // at least the sums of three groups and the norm, per step
}

/// Returns batches that set an element of this rank's gradients to `value` before the last of two micro-steps.
train::BatchSource with_fault(Tiny& run, float value) {
  return
      [&run, value, source = run.batches, calls = 0](int64_t sample, int64_t sequences, data::TokenBatch& out) mutable {
        if (++calls == 2) run.trainer.store().groups()[1].grad.as<float>()[3] = value;
        source(sample, sequences, out);
      };
}

TEST(OffloadOnRanks, AGradientOfOneRankThatIsNotFiniteSkipsTheStepOnAll) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  config::Config c = on_four_ranks(1);
  c.train.global_batch = 2 * c.train.micro_batch * c.parallel.data;
  for (const config::Offload& plan : kOffloadPlans) {
    const auto state_after = [&](std::optional<float> fault) {
      Tensors state;
      std::mutex mutex;
      comm::run_on_threads(4, {.timeout_s = 60}, [&](comm::World& world) {
        Tiny run(&world, offloaded(c, plan), DType::bf16, 1);
        run.step(1);
        if (fault) {
          const train::BatchSource sound = run.batches;
          if (world.rank() == 2) run.batches = with_fault(run, *fault);
          EXPECT_TRUE(run.step(2).skipped) << "rank " << world.rank();
          run.batches = sound;
        }
        EXPECT_FALSE(run.step(2).skipped);
        const std::lock_guard lock(mutex);
        for (const checkpoint::TensorSlice& slice : checkpoint::slices_to_save(run.trainer.store(), true))
          collect(state, slice);
      });
      return state;
    };
    const Tensors expected = state_after({});
    for (const float fault : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()})
      EXPECT_TRUE(state_after(fault) == expected) << fault << ", plan \"" << plan.gpu_fraction << "\"";
  }
}

/// Replicas with the same sequences in two micro-steps: the mean gradient is the same for 1, 2 or 4 of them, in every
/// bit, since sums and scales are powers of two. Nothing is clipped: the norm is added in the order of the replicas.
config::Config with_equal_replicas(int64_t replicas, const config::Offload& plan) {
  config::Config c = offloaded(tiny_config(), plan);
  c.model.dropout = 0;
  c.optim.grad_clip = 0;
  c.parallel.data = replicas;
  c.parallel.zero_stage = replicas > 1 ? 1 : 0;
  c.train.global_batch = 2 * c.train.micro_batch * replicas;
  return c;
}
train::BatchSource equal_batches(const config::Config& c) {
  return [c, source = tiny_batches(c)](int64_t sample, int64_t sequences, data::TokenBatch& out) {
    const int64_t step = sample / c.train.global_batch, in_step = sample % c.train.global_batch;
    const int64_t micro = in_step / (c.train.micro_batch * c.parallel.data);
    source((2 * step + micro) * c.train.micro_batch, sequences, out);
  };
}

/// Runs steps `first` to `last`, from the checkpoint `from` (empty: none), and saves into `to` (empty: does not save).
Tensors state_of_equal_replicas(int64_t replicas, const config::Offload& plan, int64_t first, int64_t last,
                                const std::filesystem::path& from, const std::filesystem::path& to) {
  const config::Config c = with_equal_replicas(replicas, plan);
  Tensors state;
  std::mutex mutex;
  comm::run_on_threads(static_cast<int>(replicas), {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, c, DType::bf16, 1);
    run.batches = equal_batches(c);
    params::ParamStore& store = run.trainer.store();
    if (!from.empty()) {
      checkpoint::Reader(from).load(checkpoint::slices_to_fill(store, true), {});
      store.refresh_compute();
    }
    for (int64_t n = first; n <= last; ++n) run.step(n);
    if (!to.empty()) {
      checkpoint::CheckpointStore files(to, {}, system_calls(), &world);
      checkpoint::Snapshot snapshot;
      snapshot.tensors = checkpoint::slices_to_save(store, true);
      files.save(snapshot);
    }
    const std::lock_guard lock(mutex);
    for (const checkpoint::TensorSlice& slice : checkpoint::slices_to_save(store, true)) collect(state, slice);
  });
  return state;
}

/// Returns the contents of a folder's shards, by name. Omits the manifest, which records when it was written, and
/// COMPLETE.
std::map<std::string, std::string> files_in(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (!entry.is_regular_file() || name == checkpoint::kManifestFile || name == checkpoint::kCompleteFile) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    files[std::filesystem::relative(entry.path(), folder)].assign(std::istreambuf_iterator<char>(in), {});
  }
  return files;
}

TEST(OffloadOnRanks, ACheckpointContinuesUnderAnotherPlanWithAnotherNumberOfReplicas) {
  constexpr int64_t kSaved = 4, kSteps = kSaved + 10;
  const Tensors whole = state_of_equal_replicas(1, {}, 1, kSteps, {}, {});
  checkpoint::TempFolder folder;
  std::map<std::string, std::string> files;
  for (const size_t saving : {0, 3}) {
    const auto path = folder.path() / std::to_string(saving);
    state_of_equal_replicas(2, kOffloadPlans[saving], 1, kSaved, {}, path);
    if (files.empty()) files = files_in(path);
    EXPECT_GE(files.size(), 2u);  // one per rank
    EXPECT_TRUE(files_in(path) == files) << "a file depends on plan " << saving;
    for (const auto& [replicas, loading] : {std::pair{4, size_t{2}}, {1, size_t{4}}, {2, size_t{1}}})
      EXPECT_TRUE(state_of_equal_replicas(replicas, kOffloadPlans[loading], kSaved + 1, kSteps, path, {}) == whole)
          << "plan " << saving << " of 2 replicas to plan " << loading << " of " << replicas;
  }
  EXPECT_TRUE(state_of_equal_replicas(4, {}, kSaved + 1, kSteps, folder.path() / "3", {}) == whole) << "to none";
}

}  // namespace
}  // namespace trainer::tests
