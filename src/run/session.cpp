#include "run/session.h"

#include <algorithm>
#include <optional>

#include "base/log.h"
#include "base/units.h"
#include "checkpoint/run_lock.h"
#include "comm/agreement.h"
#include "comm/gpu_transport.h"
#include "comm/stage_names.h"
#include "config/layout_choices.h"
#include "config/layouts.h"
#include "config/load.h"
#include "config/mistakes.h"
#include "config/resolve.h"
#include "huggingface/import.h"
#include "huggingface/model_config.h"
#include "optim/make.h"
#include "plan/prediction.h"
#include "run/planning.h"
#include "run/run_data.h"
#include "run/run_state.h"
#include "run/signals.h"
#include "run/tasks.h"
#include "run/training_loop.h"
#include "setup/gemm_tuning.h"
#include "setup/offload_memory.h"

namespace trainer::run {
namespace {

/// Throws on all ranks if some rank does not see the lock with this content (of rank 0; empty: none is needed) in a
/// folder: then it is a different folder on that rank's host, and saving would fail. Collective.
void require_shared(comm::World& world, const std::filesystem::path& folder, bool checkpoints, std::string content,
                    const char* key, double timeout) {
  const double patience = std::min(10.0, timeout / 4);  // seconds; less than what the watchdog reports as waiting
  world.control().broadcast(content);
  if (content.empty()) return;
  const bool visible = checkpoint::RunLock::is_visible(folder, checkpoints, content, patience);
  std::error_code failed;
  const std::string place = format("{} on {}", std::filesystem::absolute(folder, failed).string(), comm::host_name());
  const std::vector<std::string> places = world.control().gather((visible ? "+" : "-") + place);
  const auto rank = std::ranges::find_if(places, [](const std::string& each) { return each.starts_with("-"); });
  if (rank == places.end()) return;
  throw Error(
      Code::usage,
      format("{}: ranks must share this folder, but the lock of rank 0 in {} is not in rank {}'s {}; set {} to an "
             "absolute path on a file system that all hosts share",
             key, places.front().substr(1), rank - places.begin(), rank->substr(1), key))
      .on(Scope::all_ranks);
}

/// Locks that rank 0 holds during the lifetime of this object, so that no other process writes into the run folder or
/// the checkpoints folder.
struct Locks {
  Locks(comm::World& world, const config::Config& config) {
    const std::filesystem::path folder = checkpoint_folder(config);
    std::string in_run, in_checkpoints;
    world.control().run_on_all_ranks([&] {
      if (!world.first()) return;
      run.emplace(config.run.dir);
      checkpoints.emplace(checkpoint::RunLock::of_checkpoints(folder));
      in_checkpoints = checkpoints->content();
      // Here rank 0 converts a model of Hugging Face for all ranks.
      if (huggingface::is_model_folder(config.model.init_from)) in_run = run->content();
    });
    if (world.size() == 1) return;
    require_shared(world, folder, true, in_checkpoints, config.checkpoint.dir.empty() ? "run.dir" : "checkpoint.dir",
                   config.parallel.timeout);
    require_shared(world, config.run.dir, false, in_run, "run.dir", config.parallel.timeout);
  }
  std::optional<checkpoint::RunLock> run, checkpoints;
};

/// Returns the configuration of the checkpoint from which the run will resume, if `config` leaves something to "auto"
/// that a resumed run keeps; else an empty result. Collective.
std::optional<config::Config> config_to_resume(comm::World& world, const config::Config& config) {
  const bool chooses = config::is_automatic(config) || config::chooses_vocab_axes(config) ||
                       std::ranges::any_of(config::kMemoryChoices, [&](const config::MemoryChoice& choice) {
                         return !config::values_by_memory(config, choice).empty();
                       });
  if (!chooses) return std::nullopt;
  const auto parsed = [](const std::string& toml) {
    return config::load_text(toml, "config.toml of the checkpoint", {}, {.files = false, .warns = false});
  };
  std::string toml;
  world.control().run_on_all_ranks([&] {
    if (!world.first()) return;
    const auto stored = header_to_resume(config.checkpoint, checkpoint_folder(config));
    if (stored) try {
        parsed(stored->header.config_toml);
        toml = stored->header.config_toml;
      } catch (const Error& error) {
        log::warning("{}; what \"auto\" chose before is not known, and results may round differently", error.what());
      }
  });
  world.control().broadcast(toml);
  if (toml.empty()) return std::nullopt;
  return parsed(toml);
}

/// Replaces the memory, work and bytes in a plan of several stages by those of the stage that needs most memory, and
/// the rank of `machine` by one of that stage.
void take_largest_stage(const config::Config& config, int64_t vocab, setup::Machine& machine, setup::RunPlan& plan) {
  const auto most = std::ranges::max_element(plan.stage_totals);
  if (most == plan.stage_totals.end() || *most == plan.total) return;
  machine = setup::on_stage(machine, config, most - plan.stage_totals.begin());
  setup::RunPlan largest = setup::plan_run(config, vocab, machine, true);
  largest.step_seconds = plan.step_seconds;
  largest.wait_seconds = plan.wait_seconds;
  largest.update_seconds = plan.update_seconds;
  largest.predicted_by = plan.predicted_by;
  largest.stage_totals = plan.stage_totals;
  largest.bubble = plan.bubble;
  plan = std::move(largest);
}

/// Writes the plan to `text`, then rejects a run that does not fit.
void plan_only(comm::World& world, config::Config config, setup::Machine machine, std::string& text) {
  const int64_t vocab = data::planned_vocab(config);
  const PlanningWatch watch(world, config.model.n_layer);
  setup::RunPlan plan = plan_training(world, config, vocab, machine);
  take_largest_stage(config, vocab, machine, plan);
  for (const std::string& line : setup::stage_lines(config, plan)) text += line + "\n";
  text += to_text(plan, config, machine) + setup::offload_table(plan, config, vocab, machine);
  world.control().run_on_all_ranks([&] {
    try {
      setup::require_memory(plan, config, vocab, machine);
    } catch (const Error& error) {
      if (config.hardware.memory_limit > 0) throw;
      throw Error(error.code(), format("{}. To plan for a different machine, set hardware.memory_limit (GiB per "
                                       "rank), or use `trainer plan --cluster`",
                                       error.what()));
    }
  });
}

/// Sets what "auto" chose in the run that will be resumed, since results round differently with other choices. Returns
/// the keys for which it chose "gather".
std::vector<config::MemoryChoice> keep_choices(comm::World& world, const config::Parallel& before,
                                               config::Config& config) {
  using config::Panels, config::VocabAxes;
  std::vector<config::MemoryChoice> gathers;
  for (const config::MemoryChoice& choice : config::kMemoryChoices) {
    const std::vector<Panels> values = config::values_by_memory(config, choice);
    if (values.empty()) continue;
    if (before.*choice.key == Panels::gather) gathers.push_back(choice);
    if (before.*choice.key == Panels::ring) config.parallel.*choice.key = Panels::ring;  // the smaller at that time
  }
  if (!config::chooses_vocab_axes(config) || before.vocab_axes == VocabAxes::automatic ||
      before.strategy != config.parallel.strategy)
    return gathers;
  config.parallel.vocab_axes = before.vocab_axes;
  if (config::layout_fits(config)) return gathers;
  config.parallel.vocab_axes = VocabAxes::x;
  if (world.first())
    log::warning(
        "parallel.vocab_axes = \"x\": \"{}\", with which the run was trained until now, does not fit this grid; "
        "results will round differently",
        config::kVocabAxesNames[static_cast<size_t>(before.vocab_axes)]);
  return gathers;
}

}  // namespace

int run_session(comm::World& world, const config::Config& requested, const SessionOptions& options,
                std::string& plan_text) {
  setup::Machine machine = setup::choose_machine(requested, world);
  const std::unique_ptr<device::Device> dry = setup::make_dry_device(machine);
  const comm::GpuTransport between_gpus =
      comm::choose_gpu_transport(world, *dry, config::requested_nccl(requested.parallel));
  machine.nccl = between_gpus.nccl;
  const std::optional<config::Config> trained = config_to_resume(world, requested);
  config::Config config = requested;
  if (config::is_automatic(config))
    config = plan::choose_strategy(world, config, trained, data::planned_vocab(config), machine);
  setup::require_lanes_for_stages(config, machine);
  const std::string tuning_hash = setup::use_gemm_tuning(config, world, *dry);
  std::vector<config::MemoryChoice> gathers;
  if (trained && !config::is_automatic(requested)) gathers = keep_choices(world, trained->parallel, config);
  if (options.dry_run) {
    plan_only(world, config, machine, plan_text);
    return 0;
  }
  comm::name_stages(world, config.parallel.stages);
  setup::require_one_compute(world, machine);
  if (const std::unique_ptr<optim::Rule> rule = optim::named_rule(config); rule->needs_same_kernels())
    setup::warn_of_different_kernels(world, machine, rule->name());
  if (world.first() && config.optim.mup_base_width > 0)
    log::warning(
        "optim.mup_base_width: the attention scale stays 1/sqrt(head size), so the model of width {} must have "
        "the head size {} too",
        config.optim.mup_base_width, config::head_size(config.model));
  if (const std::string rates = optim::rates_text(config); world.first() && !rates.empty()) log::info("{}", rates);
  if (world.first())
    if (const std::string obstacle = huggingface::export_obstacle(config.model); !obstacle.empty())
      log::warning("{}; the run is not affected", obstacle);
  std::optional<SignalGuard> signals;  // one per process: ranks that are threads share the handlers of rank 0
  if (world.first() || world.transport() != "threads") signals.emplace();
  // A run is planned as soon as its vocabulary size is known, so that a run that does not fit in memory is rejected
  // before a tokenizer is trained and text is tokenized. If data.vocab_size is set, it is exact: a trained tokenizer
  // has that size, and data that contradict it are rejected. If not, the data must be opened first.
  std::optional<setup::RunPlan> plan;
  const config::Parallel given_parallel = config.parallel;
  const int64_t vocab = config.data.vocab_size;
  if (vocab > 0 && !(plan = plan_together(world, config, vocab, machine))) return kStoppedBySignal;
  const Locks locks(world, config);
  data::Datasets datasets = open_run_data(world, config, machine, options.deadline);
  if (!datasets.train) {
    const bool signalled = stop_requested_on_any_rank(world);
    log::info("stopped {} while {}; run the same command again to resume",
              signalled ? format("by {}", signal_name(stop_signal())) : "at --max-time", datasets.stopped);
    return signalled ? kStoppedBySignal : 0;
  }
  std::vector<Task> tasks = open_tasks(world, config.data.task, datasets.tokenizer ? &*datasets.tokenizer : nullptr,
                                       datasets.vocab, config.model.seq_len);
  if (datasets.vocab != vocab) config.parallel = given_parallel;
  if (datasets.vocab != vocab && !(plan = plan_together(world, config, datasets.vocab, machine)))
    return kStoppedBySignal;
  for (const config::MemoryChoice& choice : gathers)
    if (config.parallel.*choice.key == config::Panels::ring && world.first())
      log::warning(
          "parallel.{} = \"ring\": \"gather\", with which the run was trained until now, does not fit in memory "
          "or could not overlap; results will round differently",
          choice.name);
  return TrainingLoop(world, config, options,
                      {machine, between_gpus, tuning_hash, std::move(datasets), std::move(tasks), std::move(*plan)})
      .run();
}

}  // namespace trainer::run
