#include "verify/context.h"

#include <algorithm>

#include "base/join.h"
#include "base/philox.h"
#include "base/units.h"
#include "comm/agreement.h"
#include "comm/stage_names.h"
#include "config/layout_choices.h"
#include "config/stages.h"
#include "config/validate.h"
#include "data/source.h"
#include "run/planning.h"
#include "setup/gemm_tuning.h"
#include "setup/run_plan.h"

namespace trainer::verify {
namespace {

/// Throws unless one rank can hold the configured model in f64.
void require_room(comm::World& world, const Small& model, const setup::Machine& machine) {
  world.control().run_on_all_ranks([&] {
    setup::Machine one = machine;
    one.gpu.reset();
    one.compute = DType::f64;
    one.ranks = 1;
    one.rank = 0;
    const setup::RunPlan plan = setup::plan_run(on_one_rank(in_type(model, DType::f64).config), model.vocab, one, true);
    // f64 copies: gradients, weights and two states of four runs (OneRank), and two sets of states while they are
    // compared (check_resume).
    constexpr int64_t kKept = 4 * 4 * 8 + 2 * 3 * 8;
    const int64_t bytes = plan.total + kKept * plan.parameters;
    if (machine.host_limit > 0 && bytes > machine.host_limit)
      throw Error(Code::plan, format("--full compares with one rank, which needs {} of host memory ({} free); run "
                                     "without --full",
                                     format_bytes(bytes), format_bytes(machine.host_limit)));
  });
}

}  // namespace

Context::Context(comm::World& on_world, const config::Config& run, const Options& chosen)
    : world(on_world), options(chosen), config(run), delay_(std::make_shared<std::atomic<double>>(0)) {
  message_delay = delay_.get();
  double slowest = 0;
  for (const std::string& text : run.debug.inject) {
    slowest = std::max(slowest, config::injected_delay(text).value_or(0));
    if (const std::optional<config::Fault> fault = config::planted_fault(text)) faults.push_back(*fault);
  }
  *delay_ = slowest;
  world.configure({.timeout_s = run.parallel.timeout,
                   .lanes = static_cast<int>(run.parallel.lanes),
                   .delay = [delay = delay_, draws = std::make_shared<std::atomic<uint64_t>>(0)](int rank) {
                     const double longest = *delay;
                     if (longest == 0) return 0.0;
                     const uint64_t at = (static_cast<uint64_t>(rank) << 40) + draws->fetch_add(1);
                     return longest * static_cast<double>(philox_at(philox_key(1, "delay"), at) % 1024) / 1024;
                   }});
  comm::name_stages(world, run.parallel.stages);
  machine = setup::choose_machine(run, world);
  setup::require_one_compute(world, machine);
  const std::unique_ptr<device::Device> dry = setup::make_dry_device(machine);
  between_gpus = comm::choose_gpu_transport(world, *dry, config::requested_nccl(run.parallel));
  machine.nccl = between_gpus.nccl;
  setup::require_lanes_for_stages(run, machine);
  vocab = data::planned_vocab(run);
  setup::use_gemm_tuning(config, world, *dry);
  const std::vector<config::Parallel> choices = config::choices_by_memory(config);
  if (choices.size() > 1) {
    run::plan_training(world, config, vocab, machine);  // the schedule that a run takes
  } else {
    config.parallel = choices.front();
    config::choose_vocab_axes(config, vocab, machine.compute);
  }
  config::choose_stage_layers(config, vocab);
  small = options.full ? keep_sizes(config, world.size(), vocab) : shrink(config, world.size());
  if (options.full) require_room(world, small, machine);
  hosts = world.control().gather(comm::host_name());
}

std::unique_ptr<device::Device> Context::make_cpu(int threads) const {
  return std::make_unique<device::CpuDevice>(threads == 0 ? machine.threads : threads, machine.isa);
}

Small Context::model(DType type, Clip clip) {
  Small model = in_type(small, type);
  model.config.optim.grad_clip = clip == Clip::never ? 0 : one_rank(DType::f64, Clip::never).norms.front() / 2;
  return model;
}

namespace {

void add_losses(const train::Trainer::Outcome& outcome, std::vector<double>& losses) {
  losses.insert(losses.end(), {outcome.loss, outcome.z_loss, outcome.balance_loss, outcome.router_z_loss});
}

/// Returns how often each expert was chosen in the last step. Collective.
std::vector<double> choices_of(train::Trainer& trainer) {
  std::vector<double> chosen;
  if (trainer.routing() == nullptr) return chosen;
  for (const std::vector<int64_t>& layer : trainer.expert_statistics().counts)
    chosen.insert(chosen.end(), layer.begin(), layer.end());
  return chosen;
}

void add(CommBytes& sum, const CommBytes& more) {
  for (const auto& [axis, operations] : more)
    for (const auto& [operation, count] : operations) sum[axis][operation] += count;
}

}  // namespace

const OneRank& Context::one_rank(DType type, Clip clip, bool given_choices) {
  given_choices &= small.config.model.n_expert > 0;
  const std::tuple key(type, clip, given_choices);
  if (const auto found = one_rank_.find(key); found != one_rank_.end()) return found->second;
  OneRank result;
  Small one = model(type, clip);
  one.given_choices = given_choices;
  one.config = on_one_rank(one.config);
  world.control().run_on_all_ranks([&] {
    const std::unique_ptr<comm::World> solo = comm::solo_world();
    SmallRun run(*solo, make_cpu(), {}, one, type);
    for (int64_t n = 1; n <= steps_of(clip); ++n) {
      const train::Trainer::Outcome outcome = run.step(n, [&] {
        if (n == 1) result.gradients = gather(gradients_of(run.trainer()).owned);
      });
      add_losses(outcome, result.losses);
      result.norms.push_back(outcome.norm.norm);
    }
    result.chosen = choices_of(run.trainer());
    result.state = gather(state_of(run.trainer()).owned);
  });
  return one_rank_[key] = std::move(result);  // not if a run failed
}

const Exact& Context::exact(Clip clip) {
  if (const auto found = exact_.find(clip); found != exact_.end()) return found->second;
  Exact result;
  const OneRank &whole = one_rank(DType::f64, clip), &rough = one_rank(DType::f32, clip);
  const Small exactly = model(DType::f64, clip);
  SmallRun run(world, make_cpu(), {}, exactly, DType::f64);
  const std::unique_ptr<comm::World> dry_world = comm::dry_world(world.size(), world.rank());
  device::DryDevice dry(machine.threads, machine.isa);
  train::Trainer planned(dry, *dry_world, exactly.config, exactly.vocab, DType::f64);
  planned.plan();
  using Kind = config::Fault::Kind;
  for (int64_t n = 1; n <= steps_of(clip); ++n) {
    if (n == 2) run.plant(faults, Kind::weight);
    const train::Trainer::Outcome outcome = run.step(n, [&] {
      if (n == steps_of(clip)) result.padding = run.written_padding(SmallRun::Padding::gradients);
      if (n > 1) return;
      run.plant(faults, Kind::gradient);
      result.gradients = compare(world, gradients_of(run.trainer()), whole.gradients,
                                 rounding_bounds(whole.gradients, rough.gradients));
    });
    add_losses(outcome, result.losses);
    result.norms.push_back(outcome.norm.norm);
    add(result.predicted, run.trainer().expected_comm_bytes(run.trainer().comm_bytes_per_step()));
    add(result.planned, run.trainer().expected_comm_bytes(planned.comm_bytes_per_step()));
  }
  result.chosen = choices_of(run.trainer());
  if (result.padding.empty()) result.padding = run.written_padding(SmallRun::Padding::weights);
  result.state = compare(world, state_of(run.trainer()), whole.state, rounding_bounds(whole.state, rough.state));
  result.counted = run.trainer().comm_bytes(run.trainer().meter().comm());
  result.samples = run.samples();
  return exact_[clip] = std::move(result);
}

std::string Context::name(const std::vector<int>& ranks) const {
  std::vector<std::string> on;
  for (const int rank : ranks)
    if (const std::string& host = hosts[static_cast<size_t>(rank)]; std::ranges::count(on, host) == 0)
      on.push_back(host);
  return format("rank{} {} (host{} {})", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "),
                on.size() == 1 ? "" : "s", fmt::join(on, ", "));
}

Finding finding_of(Context& c, std::string checked, const std::string& problem) {
  Finding finding{.checked = std::move(checked)};
  const std::vector<std::string> problems = c.world.control().gather(problem);
  for (size_t rank = 0; rank < problems.size(); ++rank)
    if (!problems[rank].empty()) finding.ranks.push_back(static_cast<int>(rank));
  if (finding.ranks.empty()) return finding;
  finding.result = Result::failure;
  finding.text = format("{}: {}", c.name(finding.ranks), problems[static_cast<size_t>(finding.ranks.front())]);
  return finding;
}

}  // namespace trainer::verify
