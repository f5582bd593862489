#include "run/loaded_model.h"

#include <algorithm>

#include "base/log.h"
#include "checkpoint/folder.h"
#include "checkpoint/model_keys.h"
#include "comm/gpu_transport.h"
#include "config/layout_choices.h"
#include "config/load.h"
#include "run/fallback.h"
#include "run/planning.h"
#include "run/run_state.h"
#include "setup/gemm_tuning.h"
#include "setup/run_plan.h"

namespace trainer::run {

namespace fs = std::filesystem;

namespace {

config::Compute compute_named(const std::string& name, const fs::path& folder) {
  if (name == name_of(DType::bf16)) return config::Compute::bf16;
  if (name == name_of(DType::f32)) return config::Compute::fp32;
  if (name == name_of(DType::f64)) return config::Compute::fp64;
  throw Error(Code::checkpoint, format("{}: compute type \"{}\", expected bf16, fp32 or fp64", folder.string(), name));
}

/// Returns the advice for a model that does not fit: the smallest number of ranks that was tried and fits.
std::string more_ranks_that_fit(const config::Config& trained, const Layouts& layouts, int64_t vocab,
                                setup::Machine machine) {
  constexpr int kMostTimes = 16;
  const int ranks = machine.ranks;
  machine.rank = 0;
  config::Config config = trained;
  while ((machine.ranks *= 2) <= kMostTimes * ranks)
    for (const config::Parallel& layout : layouts(trained, machine.ranks)) {
      config.parallel = layout;
      if (setup::plan_run(config, vocab, machine, false).total <= machine.memory_limit)
        return format("{} ranks with as much memory each fit: start them with mpirun -np {}", machine.ranks,
                      machine.ranks);
    }
  return format("not even {} ranks with as much memory each fit: use a machine with more memory", kMostTimes * ranks);
}

/// Uses the first layout that fits in the memory of every rank. If none does, all ranks throw the error of the last
/// layout.
void lay_out(comm::World& world, const config::Config& trained, const Layouts& layouts, int64_t vocab,
             LoadedModel& loaded) {
  std::vector<config::Parallel> candidates;
  for (const config::Parallel& layout : layouts(trained, world.size())) {
    loaded.config.parallel = layout;
    for (config::Parallel& choice : config::choices_by_memory(loaded.config)) candidates.push_back(std::move(choice));
  }
  const setup::RunPlan plan = plan_first_that_fits(world, candidates, loaded.config, loaded.machine, [&] {
    return setup::plan_run(loaded.config, vocab, loaded.machine, false);
  });
  world.control().run_on_all_ranks([&] {
    setup::require_memory(plan, loaded.config, vocab, loaded.machine,
                          [&] { return more_ranks_that_fit(trained, layouts, vocab, loaded.machine); });
  });
}

/// Uses the run's GEMM algorithms if its tuning table can still be read.
void take_tuning(comm::World& world, const LoadedModel& loaded) {
  try {
    setup::use_gemm_tuning(loaded.config, world, *setup::make_dry_device(loaded.machine));
  } catch (const Error& error) {
    if (error.code() != Code::config) throw;
    if (world.first()) log::info("{}; using the library's GEMM heuristic instead", error.what());
  }
}

/// Loads a checkpoint. Returns the corruption found in it, or an empty string if the model was loaded.
std::string load_folder(comm::World& world, const fs::path& folder, const Layouts& layouts,
                        const std::vector<std::string>& sets, std::optional<LoadedModel>& out) {
  std::optional<checkpoint::Reader> reader;
  if (std::string damage = find_damage_on_any_rank(world, [&] { reader.emplace(folder); }); !damage.empty())
    return damage;
  require_same_copy(world, *reader);
  const checkpoint::Snapshot& header = reader->header();
  LoadedModel loaded;
  loaded.folder = folder;
  loaded.step = header.state.step;
  loaded.config = config::load_text(header.config_toml, (folder / "config.toml").string(), sets, {.files = false});
  if (std::ranges::none_of(sets, [](const std::string& set) { return set.starts_with("precision.compute"); }))
    loaded.config.precision.compute = compute_named(header.compute, folder);
  const config::Config trained = loaded.config;
  loaded.config.parallel = layouts(trained, world.size()).front();
  loaded.val_hash = header.val_hash;
  loaded.tokenizer = checkpoint::tokenizer_of(header, folder);
  loaded.machine = setup::choose_machine(loaded.config, world);
  take_tuning(world, loaded);
  const int64_t vocab = reader->vocab_size();
  for (const auto& [key, value] : checkpoint::model_keys(loaded.config.model, vocab))
    if (const auto stored = header.model_keys.find(key); stored != header.model_keys.end() && stored->second != value)
      throw Error(Code::checkpoint, format("{}: {} is {} in manifest.json, but {} in config.toml: one of the files was "
                                           "edited; restore it",
                                           folder.string(), key, stored->second, value))
          .on(Scope::all_ranks);
  std::optional<PlanningWatch> watch(std::in_place, world, loaded.config.model.n_layer);
  lay_out(world, trained, layouts, vocab, loaded);
  loaded.device = setup::make_device(loaded.machine);
  // "auto" instead of the run's transport, since the model may have been trained on a different machine.
  loaded.gpu_world =
      comm::gpu_world(world, *loaded.device, comm::choose_gpu_transport(world, *loaded.device, std::nullopt));
  loaded.runner = std::make_unique<train::ModelRunner>(*loaded.device, loaded.gpu_world ? *loaded.gpu_world : world,
                                                       loaded.config, vocab, loaded.machine.compute);
  loaded.runner->plan();
  watch.reset();
  if (std::string damage = load_weights(*loaded.runner, *reader); !damage.empty()) return damage;
  out = std::move(loaded);
  return {};
}

}  // namespace

LoadedModel load_model(comm::World& world, const fs::path& path, const Layouts& layouts,
                       const std::vector<std::string>& sets) {
  const auto list = [&] { return list_on_first_rank(world, [&] { return checkpoint::candidates(path); }); };
  std::vector<fs::path> candidates = list();
  std::optional<LoadedModel> loaded;
  while (!loaded) {
    const std::string none_whole =
        candidates.size() < 2 ? ""
                              : format("{}: none of its {} checkpoints is intact: ", path.string(), candidates.size());
    try {
      load_first_whole(world, candidates, none_whole,
                       [&](const fs::path& folder) { return load_folder(world, folder, layouts, sets, loaded); });
    } catch (const Error& error) {  // a run that is still training may have replaced these checkpoints by newer ones
      if (error.scope() != Scope::all_ranks || std::exchange(candidates, list()) == candidates) throw;
    }
  }
  return std::move(*loaded);
}

}  // namespace trainer::run
