#include "run/planning.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>

#include "base/log.h"
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

std::optional<setup::RunPlan> plan_together(comm::World& world, const config::Config& config, int64_t vocab,
                                            const setup::Machine& machine) {
  const PlanningWatch watch(world, config.model.n_layer);
  setup::RunPlan plan;
  world.control().run_on_all_ranks([&] {
    plan = plan::plan_and_time(config, vocab, machine);
    setup::require_memory(plan, config, vocab, machine);
  });
  if (!stop_requested_on_any_rank(world)) return plan;
  log::info("stopped by {} while planning; no step was trained", signal_name(stop_signal()));
  return std::nullopt;
}

}  // namespace trainer::run
