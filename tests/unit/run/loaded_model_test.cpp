// A trained model on any number of ranks: a copy per rank if it fits, shared if one rank cannot hold it.
#include "run/loaded_model.h"

#include "config/layout_choices.h"

#include "checkpoint/store.h"
#include "config/load.h"
#include "config/text.h"
#include "rigs/megatron.h"
#include "rigs/messages.h"
#include "run/run_state.h"
#include "setup/run_plan.h"
#include "train/generate.h"
#include "unit/checkpoint/fixture.h"

namespace trainer::tests {
namespace {

constexpr double kGiB = 1 << 30;
const std::vector<std::string> kOneThread = {"run.threads=1"};

/// Saves a checkpoint of the layout's model, whose configuration limits each rank to `memory_gib`.
void save(const config::Config& trained, double memory_gib, const std::filesystem::path& path,
          std::map<std::string, std::string> keys = {}) {
  config::Config saved = config::load_text("", "defaults.toml", {}, {.files = false});
  saved.model = trained.model;
  saved.train.global_batch = trained.train.global_batch;
  saved.train.micro_batch = trained.train.micro_batch;
  saved.parallel.strategy = trained.parallel.strategy;
  saved.parallel.tensor = trained.parallel.tensor;
  saved.parallel.mesh = trained.parallel.mesh;
  saved.parallel.shards = trained.parallel.shards;
  saved.parallel.data = trained.parallel.data;
  saved.hardware.memory_limit = memory_gib;
  saved.hardware.gemm_tuning = path / "gone.json";  // a missing file does not prevent loading
  const auto ranks = static_cast<int>(config::ranks_of_replica(trained) * trained.parallel.data);
  comm::run_on_threads(ranks, {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, trained, DType::f32, 1);
    checkpoint::CheckpointStore files(path, {}, system_calls(), &world);
    checkpoint::Snapshot snapshot;
    snapshot.config_toml = config::to_toml(saved);
    snapshot.compute = "fp32";
    snapshot.model_keys = keys;
    snapshot.model_keys["vocab_size"] = format("{}", kTinyVocab);
    snapshot.tied = trained.model.tie_embeddings.value();
    snapshot.tensors = checkpoint::slices_to_save(run.trainer.store(), /*moments=*/false);
    files.save(snapshot);
  });
}

config::Config large() {
  config::Config c = configure({2, 1, true});
  c.model.dropout = 0;
  c.model.d_ff = 24 * 3600;  // most of the memory is in weights that ranks share, not in what they need to communicate
  return c;
}

/// Returns the GiB that each of four ranks needs to evaluate the model if `tensor` of them share it.
double needed(config::Config c, int tensor) {
  c.parallel.tensor = tensor;
  c.parallel.data = 4 / tensor;
  setup::Machine machine{.threads = 1, .isa = device::detect_isa(), .compute = DType::f32, .compute_reason = {}};
  machine.ranks = 4;
  return static_cast<double>(setup::plan_run(c, kTinyVocab, machine, false).total) / kGiB;
}

struct Loaded {
  int64_t tensor = 0, data = 0;
  double nats = 0;
  std::string strategy;
};
Loaded load(const std::filesystem::path& path, int ranks) {
  Loaded found;
  comm::run_on_threads(ranks, {.timeout_s = 60}, [&](comm::World& world) {
    const run::LoadedModel model = run::load_model(world, path, config::replica_layouts, kOneThread);
    data::TokenBatch batch;
    tiny_batches(model.config)(0, model.config.train.micro_batch, batch);
    double nats = model.runner->loss_sum(batch);
    model.runner->scalars().sum_over_rows({&nats, 1});  // over replicas too, which all have the same batch
    nats /= static_cast<double>(model.config.parallel.data);
    if (world.first())
      found = {model.config.parallel.tensor, model.config.parallel.data, nats, name_of(model.config.parallel.strategy)};
  });
  return found;
}

TEST(LoadedModel, IsSharedByAsFewRanksAsCanHoldIt) {
  const config::Config c = large();
  checkpoint::TempFolder folder;
  const double whole = needed(c, 1), half = needed(c, 2), quarter = needed(c, 4);
  ASSERT_LT(half, 0.8 * whole);
  ASSERT_LT(quarter, 0.8 * half);
  save(c, 1.1 * whole, folder / "roomy");
  save(c, 0.5 * (half + whole), folder / "tight");
  save(c, 0.5 * (quarter + half), folder / "tighter");

  const Loaded one = load(folder / "roomy", 1);
  EXPECT_EQ(one.tensor, 1);
  const Loaded replicas = load(folder / "roomy", 4);
  EXPECT_EQ(std::pair(replicas.tensor, replicas.data), std::pair(int64_t{1}, int64_t{4}));
  EXPECT_EQ(replicas.nats, one.nats);
  const Loaded pairs = load(folder / "tight", 4);
  EXPECT_EQ(std::pair(pairs.tensor, pairs.data), std::pair(int64_t{2}, int64_t{2}));
  EXPECT_NEAR(pairs.nats, one.nats, 1e-5 * one.nats);
  const Loaded all = load(folder / "tighter", 4);
  EXPECT_EQ(std::pair(all.tensor, all.data), std::pair(int64_t{4}, int64_t{1}));
  EXPECT_NEAR(all.nats, one.nats, 1e-5 * one.nats);
  for (const int ranks : {1, 2}) checkpoint::expect_error(Code::plan, {}, [&] { load(folder / "tighter", ranks); });
}

TEST(LoadedModel, TrainedOnASquareIsEvaluatedOnItWhereACopyDoesNotFit) {
  config::Config c = large();
  c.parallel.strategy = config::StrategyName::optimus_2d;
  c.parallel.mesh = {2, 2};
  c.parallel.panels = config::Panels::ring;  // the checkpoint says "auto"
  c.parallel.tensor = 1;
  c.train.micro_batch = c.train.global_batch = 4;
  checkpoint::TempFolder folder;
  setup::Machine machine{.threads = 1, .isa = device::detect_isa(), .compute = DType::f32, .compute_reason = {}};
  machine.ranks = 4;
  const double square = static_cast<double>(setup::plan_run(c, kTinyVocab, machine, false).total) / kGiB;
  const double whole = needed(on_one_rank(c), 1), half = needed(on_one_rank(c), 2);
  ASSERT_LT(square, 0.8 * half);
  save(c, 1.1 * whole, folder / "roomy");
  save(c, 0.5 * (square + half), folder / "tight");
  const Loaded one = load(folder / "roomy", 1), four = load(folder / "tight", 4);
  EXPECT_EQ(one.strategy, "megatron-1d");
  EXPECT_EQ(four.strategy, "optimus-2d");
  EXPECT_NEAR(four.nats, one.nats, 1e-5 * one.nats);
}

TEST(LoadedModel, IsTheNewestWhereARunRemovedTheOneBeforeMeanwhile) {
  const config::Config c = on_one_rank(configure({2, 1, true}));
  checkpoint::TempFolder folder;
  save(c, 1, folder);
  bool removed = false;
  const run::Layouts layouts = [&](const config::Config& trained, int ranks) {
    if (!std::exchange(removed, true)) std::filesystem::rename(folder / "step-00000000", folder / "step-00000007");
    return config::replica_layouts(trained, ranks);
  };
  const auto world = comm::solo_world();
  EXPECT_EQ(run::load_model(*world, folder, layouts, kOneThread).folder, folder / "step-00000007");
  checkpoint::write(folder / "step-00000007/rank-00000.shard", "");
  EXPECT_THROW(run::load_model(*world, folder, config::replica_layouts, kOneThread), Error)
      << "nothing newer: an error";
}

TEST(LoadedModel, IsNotTakenFromAManifestOfAnotherModel) {
  const config::Config c = on_one_rank(configure({2, 1, true}));
  checkpoint::TempFolder folder;
  save(c, 1, folder, {{"n_head", "3"}});
  checkpoint::expect_error(Code::checkpoint, {"n_head", "3", "manifest.json", "config.toml"}, [&] { load(folder, 1); });
}

TEST(LoadedModel, LayoutsThatDoNotFitTheModelAreNotOffered) {
  config::Config c = configure({2, 1, true, config::Arch::llama, 1, 6});
  std::vector<int64_t> offered;
  for (const config::Parallel& layout : config::replica_layouts(c, 12)) {
    offered.push_back(layout.tensor);
    EXPECT_EQ(layout.tensor * layout.data, 12);
  }
  EXPECT_EQ(offered, (std::vector<int64_t>{1, 2, 3, 6, 12}));  // 4 ranks cannot share 6 key/value heads
  c.parallel.tensor = 3;  // the checkpoint's own layout first, then only those that share a model over more ranks
  offered.clear();
  for (const config::Parallel& layout : config::replica_layouts(c, 12)) offered.push_back(layout.tensor);
  EXPECT_EQ(offered, (std::vector<int64_t>{1, 3, 6, 12}));
  const std::vector<config::Parallel> one_by_one = config::generation_layouts(c, 12);
  ASSERT_EQ(one_by_one.size(), 1u);
  EXPECT_EQ(one_by_one[0].tensor, 12);
  EXPECT_FALSE(one_by_one[0].sequence_parallel);
}

TEST(LoadedModel, MayBeSharedAsItWasTrainedWhereACopyDoesNotFit) {
  config::Config c = configure({1, 1, true, config::Arch::gpt2, 4});
  c.parallel.strategy = config::StrategyName::optimus_2d;
  c.parallel.mesh = {2, 2, 2};
  std::vector<std::string> offered;
  for (const config::Parallel& layout : config::replica_layouts(c, 16)) {
    config::Config of = c;
    of.parallel = layout;
    offered.push_back(format("{} x {}", config::replica_text(of), layout.data));
  }
  ASSERT_GE(offered.size(), 3u);
  EXPECT_EQ(offered[0], "tensor = 1 x 16");
  EXPECT_EQ(offered[1], "mesh = [2, 2, 2] x 2");
  EXPECT_EQ(offered[2], "tensor = 2 x 8");
  const std::vector<config::Parallel> one_by_one = config::generation_layouts(c, 16);
  ASSERT_EQ(one_by_one.size(), 2u);
  EXPECT_EQ(one_by_one[0].strategy, config::StrategyName::megatron_1d);
  EXPECT_EQ(one_by_one[0].tensor, 8);
  EXPECT_EQ(one_by_one[1].strategy, config::StrategyName::optimus_2d)
      << "as it was trained, where it does not fit otherwise";
  EXPECT_EQ(one_by_one[1].data, 2);
}

// With three heads, only three ranks can share them.
config::Config odd_heads() {
  config::Config c = on_one_rank(configure({1, 1, false}));
  c.model.dropout = 0;
  c.model.n_head = c.model.n_kv_head = 3;
  c.model.d_ff = 24 * 3600;
  c.parallel.strategy = config::StrategyName::fsdp;
  c.parallel.shards = 4;
  c.parallel.data = 1;
  c.train.micro_batch = c.train.global_batch = 4;
  return c;
}

TEST(LoadedModel, GeneratesInTheLayoutOfTrainingWhereNothingElseFits) {
  const config::Config c = odd_heads();
  checkpoint::TempFolder folder;
  setup::Machine machine{.threads = 1, .isa = device::detect_isa(), .compute = DType::f32, .compute_reason = {}};
  machine.ranks = 4;
  const double quarter = static_cast<double>(setup::plan_run(c, kTinyVocab, machine, false).total) / kGiB;
  const double whole = needed(on_one_rank(c), 1);
  ASSERT_LT(quarter, 0.8 * whole);
  save(c, 0.5 * (quarter + whole), folder / "tight");
  save(c, 1.1 * whole, folder / "roomy");
  const auto text_on = [](const std::filesystem::path& path, int ranks, std::string& strategy) {
    std::vector<int32_t> text;
    comm::run_on_threads(ranks, {.timeout_s = 60}, [&](comm::World& world) {
      const run::LoadedModel model = run::load_model(world, path, config::generation_layouts, kOneThread);
      if (world.first()) strategy = name_of(model.config.parallel.strategy);
      if (model.runner->replica() > 0) return;
      train::Generator generator(*model.runner);
      const auto emit = [&](int32_t id) {
        if (world.first()) text.push_back(id);
        return true;
      };
      std::optional<train::TokenRequest> request{{{1, 2, 3}, 6, {.temperature = 0}, {}, emit}};
      generator.run([&] { return std::exchange(request, std::nullopt); });
    });
    return text;
  };
  std::string one, four;
  const std::vector<int32_t> expected = text_on(folder / "roomy", 1, one), text = text_on(folder / "tight", 4, four);
  EXPECT_EQ(one, "megatron-1d");
  EXPECT_EQ(four, "fsdp");
  EXPECT_EQ(text, expected);
  // Two ranks are too few; the advice concerns this command, not training.
  for (const run::Layouts& layouts : {run::Layouts(config::generation_layouts), run::Layouts(config::replica_layouts)})
    comm::run_on_threads(2, {.timeout_s = 60}, [&](comm::World& world) {
      const Error error = error_of([&] { run::load_model(world, folder / "tight", layouts, kOneThread); });
      EXPECT_EQ(error.code(), Code::plan);
      expect_parts(error.what(), {"the model needs", "4 ranks with as much memory each fit", "mpirun -np 4"});
      EXPECT_EQ(std::string(error.what()).find("zero_stage"), std::string::npos) << error.what();
    });
}

TEST(LoadedModel, ReportsAConfigurationThatCannotBeCompared) {
  checkpoint::Snapshot present;
  present.config_toml = "[optim]\nlr = 0.1\n";
  run::Resumed resumed{.folder = "step-00000004", .state = {}};
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[optim\nlr = 0.1\n", "step-00000004/config.toml:1:"},
      {"[data]\nsource = [{ name = 5 }]\n", "optim.lr: 0.1 (new)"}};
  for (const auto& [text, expected] : cases) {
    resumed.config_toml = text;
    Warnings warnings;
    run::log_changes(resumed, present);
    ASSERT_FALSE(warnings.lines.empty());
    expect_parts(warnings.lines.front(), {expected, "since the checkpoint"});
  }
}

}  // namespace
}  // namespace trainer::tests
