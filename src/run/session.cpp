#include "run/session.h"

#include <optional>

#include "base/log.h"
#include "checkpoint/run_lock.h"
#include "comm/gpu_transport.h"
#include "config/layouts.h"
#include "plan/prediction.h"
#include "run/planning.h"
#include "run/run_data.h"
#include "run/run_folder.h"
#include "run/signals.h"
#include "run/training_loop.h"
#include "setup/gemm_tuning.h"
#include "setup/offload_memory.h"

namespace trainer::run {
namespace {

/// The first rank holds these locks for as long as this object lives: nobody else writes into the run's folder or its
/// checkpoints.
struct Locks {
  Locks(comm::World& world, const config::Config& config) {
    world.control().run_on_all_ranks([&] {
      if (!world.first()) return;
      run.emplace(config.run.dir);
      checkpoints.emplace(checkpoint::RunLock::of_checkpoints(checkpoint_folder(config)));
    });
  }
  std::optional<checkpoint::RunLock> run, checkpoints;
};

/// Returns the configuration with the planner's choice in place of strategy "auto"; the first rank says why.
config::Config with_chosen_strategy(comm::World& world, const config::Config& config, const setup::Machine& machine) {
  if (!config::is_automatic(config)) return config;
  std::string reasons;
  config::Config chosen = plan::choose_strategy(world, config, data::planned_vocab(config), machine, reasons);
  if (world.first())
    log::info("strategy \"auto\" chose {} with {}, micro_batch = {} and recompute = \"{}\":\n{}",
              chosen.parallel.strategy, config::layout_text(chosen), chosen.train.micro_batch,
              config::recompute_text(chosen), reasons);
  return chosen;
}

}  // namespace

int run_session(comm::World& world, const config::Config& asked, const SessionOptions& options,
                std::string& plan_text) {
  setup::Machine machine = setup::choose_machine(asked, world);
  const std::unique_ptr<device::Device> like_it = setup::make_dry_device(machine);
  machine.nccl = comm::choose_gpu_transport(world, *like_it, asked.parallel.transport).nccl;
  const config::Config config = with_chosen_strategy(world, asked, machine);
  const std::string tuning_hash = setup::use_gemm_tuning(config, world, *like_it);
  if (options.dry_run) {
    const int64_t vocab = data::planned_vocab(config);
    const PlanningWatch watch(world, config.model.n_layer);
    const setup::RunPlan plan = plan::plan_and_time(config, vocab, machine);
    plan_text = to_text(plan, config, machine) + setup::offload_table(plan, config, machine);
    world.control().run_on_all_ranks([&] {
      try {
        setup::require_memory(plan, config, vocab, machine);
      } catch (const Error& error) {
        if (config.hardware.memory_limit > 0) throw;
        throw Error(error.code(), format("{}. To plan for a different machine, set hardware.memory_limit (GB per "
                                         "rank), or use `trainer plan --cluster`",
                                         error.what()));
      }
    });
    return 0;
  }
  setup::require_one_compute(world, machine);
  const Deadline deadline = options.max_seconds > 0 ? Deadline(options.max_seconds) : Deadline();
  std::optional<SignalGuard> signals;  // handlers belong to a process: ranks that are threads share the first one's
  if (world.first() || world.transport() != "threads") signals.emplace();
  // Where the vocabulary is known before a tokenizer exists, memory is checked before the work of training one.
  if (config.data.tokenizer == "train" && !plan_together(world, config, config.data.vocab_size, machine))
    return kStoppedBySignal;
  const Locks locks(world, config);
  data::Datasets datasets = open_run_data(world, config, machine, deadline);
  if (!datasets.train) {
    log::info("stopped while tokenizing; run the same command again to resume");
    return stop_requested_on_any_rank(world) ? kStoppedBySignal : 0;
  }
  std::optional<setup::RunPlan> plan = plan_together(world, config, datasets.vocab, machine);
  if (!plan) return kStoppedBySignal;
  return TrainingLoop(world, config, options, deadline, {machine, tuning_hash, std::move(datasets), std::move(*plan)})
      .run();
}

}  // namespace trainer::run
