#include "run/planning.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>

#include "base/log.h"
#include "base/units.h"
#include "config/layout_choices.h"
#include "config/layouts.h"
#include "config/stages.h"
#include "plan/prediction.h"

namespace trainer::run {
namespace {

constexpr std::chrono::seconds kSilent{2};

void tell_later(const std::stop_token& over, int64_t layers) {
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::condition_variable_any().wait_for(lock, over, kSilent, [] { return false; });
  if (!over.stop_requested()) log::info("planning memory and communication of {} layers", layers);
}

}  // namespace

PlanningWatch::PlanningWatch(const comm::World& world, int64_t layers) {
  if (world.first() && world.transport() != "mpi") at_once_.emplace("planning; no step was trained");
  if (!world.first()) return;
  try {
    teller_ = std::jthread(tell_later, layers);
  } catch (const std::system_error&) {  // without a thread the line is not logged
  }
}

setup::RunPlan plan_first_that_fits(comm::World& world, const std::vector<config::Parallel>& layouts,
                                    config::Config& config, const setup::Machine& machine,
                                    const std::function<setup::RunPlan()>& plan) {
  std::optional<setup::RunPlan> smallest;
  config::Parallel of_smallest;
  double least = 0;
  for (const config::Parallel& layout : layouts) {
    config.parallel = layout;
    setup::RunPlan own;
    world.control().run_on_all_ranks([&] { own = plan(); });
    const int64_t most = own.stage_totals.empty() ? own.total : std::ranges::max(own.stage_totals);
    double sums[] = {most > machine.memory_limit ? 1.0 : 0.0, static_cast<double>(most)};
    world.control().sum(sums);
    if (sums[0] == 0) return own;
    if (smallest && sums[1] >= least) continue;
    least = sums[1];
    of_smallest = layout;
    smallest = std::move(own);
  }
  config.parallel = of_smallest;
  return std::move(*smallest);
}

setup::RunPlan plan_training(comm::World& world, config::Config& config, int64_t vocab, const setup::Machine& machine) {
  config::choose_vocab_axes(config, vocab, machine.compute);
  config::choose_stage_layers(config, vocab);
  const std::vector<config::Parallel> choices = config::choices_by_memory(config);
  const bool given = config.optim.overlap;
  const auto plan_one = [&] {
    config.optim.overlap = given;
    return setup::overlap_if_it_fits(config, machine, [&] { return plan::plan_and_time(config, vocab, machine); });
  };
  setup::RunPlan plan = plan_first_that_fits(world, choices, config, machine, plan_one);
  if (given && !config.optim.overlap && plan.total <= machine.memory_limit && world.first())
    log::info("optim.overlap is false in this run, since gradients in memory of their own do not fit");
  if (choices.size() > 1 && world.first()) log::info("layout chosen by memory: {}", config::layout_text(config));
  if (const std::string few = setup::few_micro_batches_text(config, plan); world.first() && !few.empty())
    log::warning("{}", few);
  if (config.parallel.pipeline_schedule == sharding::PipelineSchedule::zb_h1 && world.first() &&
      recompute_of(config.train, 0) == config::Recompute::full)
    log::warning(
        "parallel.pipeline_schedule = \"zb-h1\" with train.recompute = \"full\" keeps the inputs of all weight "
        "gradients "
        "of {} micro-batches (predicted {}); \"1f1b\" takes less memory",
        config.parallel.stages, format_bytes(static_cast<double>(std::ranges::max(plan.stage_totals))));
  return plan;
}

std::optional<setup::RunPlan> plan_together(comm::World& world, config::Config& config, int64_t vocab,
                                            const setup::Machine& machine) {
  const PlanningWatch watch(world, config.model.n_layer);
  const setup::RunPlan plan = plan_training(world, config, vocab, machine);
  world.control().run_on_all_ranks([&] { setup::require_memory(plan, config, vocab, machine); });
  if (!stop_requested_on_any_rank(world)) return plan;
  log::info("stopped by {} while planning; no step was trained", signal_name(stop_signal()));
  return std::nullopt;
}

}  // namespace trainer::run
