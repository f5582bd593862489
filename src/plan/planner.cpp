#include "plan/planner.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "config/layout_rules.h"
#include "config/layouts.h"
#include "config/tags.h"
#include "measure/units.h"
#include "plan/layer_costs.h"

namespace trainer::plan {
namespace {

using config::Config;
using config::Recompute;

constexpr double kGpuMemoryShare = 0.92;  // the rest is the context and what libraries take
constexpr int64_t kFewLayers = 3;         // so deep models tell what a layer adds

/// Returns a machine that stands for one rank of the cluster in dry runs.
Machine machine_of(const Cluster& cluster, const Config& config, DType compute, int64_t ranks) {
  Machine machine;
  machine.threads = 1;
  // Products of a GPU do not read packed copies of weights, and neither do those of AVX2.
  machine.isa = cluster.cpu && cluster.measured ? device::detect_isa() : device::Isa::avx2;
  machine.compute = compute;
  machine.compute_reason = "the planner";
  machine.ranks = static_cast<int>(ranks);
  const double limit =
      config.hardware.memory_limit > 0 ? config.hardware.memory_limit * (1 << 30) : cluster.memory_bytes;
  machine.memory_limit = static_cast<int64_t>(cluster.cpu ? limit : kGpuMemoryShare * limit);
  return machine;
}

bool has_equal_layers(const Config& config) {
  return config.parallel.cache_layers == 0 && config.parallel.layer.size() <= 1;
}

/// Adds factor times what b has more than a.
int64_t on_line(int64_t a, int64_t b, int64_t factor) { return a + factor * (b - a); }
template <typename Map>
Map on_line(const Map& a, const Map& b, int64_t factor) {
  Map line = a;
  for (const auto& [key, value] : b) line.try_emplace(key);
  for (auto& [key, value] : line) {
    const auto found = b.find(key);
    value = on_line(value, found == b.end() ? typename Map::mapped_type() : found->second, factor);
  }
  return line;
}

/// Records and prices a configuration. Of a deep model of equal layers it records two shallow ones: every further layer
/// adds the same.
void price_into(PlannedRun& run, int64_t vocab, const Cluster& cluster, const Machine& machine) {
  const auto record = [&](int64_t layers) {
    Config config = run.config;
    config.model.n_layer = layers;
    config.train.sample_interval = 0;  // samples take next to no memory, but their plan takes time
    if (config.parallel.layer.size() == 1) config.parallel.layer.front().layers = 0;
    return record_step(config, vocab, machine);
  };
  const int64_t layers = run.config.model.n_layer;
  if (layers <= kFewLayers || !has_equal_layers(run.config)) {
    const StepProgram step = record(layers);
    run.time = price(step, cluster, machine.compute);
    run.plan = step.plan;
  } else {
    const StepProgram less = record(kFewLayers - 1), more = record(kFewLayers);
    const int64_t factor = layers - kFewLayers + 1;
    run.time = extrapolate(price(less, cluster, machine.compute), price(more, cluster, machine.compute),
                           static_cast<double>(factor));
    run.plan = more.plan;
    run.plan.memory = on_line(less.plan.memory, more.plan.memory, factor);
    run.plan.comm_bytes = on_line(less.plan.comm_bytes, more.plan.comm_bytes, factor);
    run.plan.parameters = on_line(less.plan.parameters, more.plan.parameters, factor);
    run.plan.total = on_line(less.plan.total, more.plan.total, factor);
    run.plan.flops = measure::flops_per_token(run.config.model, vocab, run.config.train.recompute);
  }
  run.fits = run.plan.total <= machine.memory_limit;
  const double tokens = static_cast<double>(run.config.train.global_batch * run.config.model.seq_len);
  run.tokens_per_s = tokens / run.time.total();
  run.mfu = run.plan.flops.full() * run.tokens_per_s / (machine.ranks * cluster.peak(machine.compute));
}

PlannedRun planned(Config config) {
  PlannedRun run;
  config::drop_other_strategies(config);
  run.strategy = config.parallel.strategy;
  run.layout = config::layout_text(config);
  run.config = std::move(config);
  return run;
}

/// Prices with as little recomputation as fits, and with the faster way to hold the optimizer's state. Keys that are
/// given stay.
void price_to_fit(PlannedRun& run, int64_t vocab, const Cluster& cluster, const Machine& machine) {
  const Config base = run.config;
  const bool zero_given = config::is_given(base, "parallel.zero_stage");
  const bool recompute_given = config::is_given(base, "train.recompute");
  std::optional<PlannedRun> fastest, smallest;
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    if (recompute_given && recompute != base.train.recompute) continue;
    for (const int64_t zero : {0, 1}) {
      if (zero_given ? zero != base.parallel.zero_stage : zero == 1 && base.parallel.data == 1) continue;
      run.config.train.recompute = recompute;
      run.config.parallel.zero_stage = zero;
      run.layout = config::layout_text(run.config);
      price_into(run, vocab, cluster, machine);
      if (run.fits && (!fastest || run.time.total() < fastest->time.total())) fastest = run;
      if (!smallest || run.plan.total < smallest->plan.total) smallest = run;
    }
    if (fastest) break;
  }
  run = fastest ? std::move(*fastest) : std::move(*smallest);
}

/// Runs work(i) for i below n on some threads. The first exception ends it.
void for_each(size_t n, int threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr problem;
  const auto run = [&] {
    for (size_t i = next++; i < n; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (problem == nullptr) problem = std::current_exception();
        next = n;
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int t = 1; t < threads; ++t) helpers.emplace_back(run);
    run();
  }
  if (problem != nullptr) std::rethrow_exception(problem);
}

/// Search estimates layouts and finds those of the strategy by tags.
class LayoutSearch {
 public:
  LayoutSearch(const PlanRequest& request, const Cluster& cluster, DType compute, double memory_limit)
      : request_(request), cluster_(cluster), compute_(compute), memory_limit_(memory_limit) {}

  /// Layouts that cannot fit come after all others.
  double estimate(const Config& config) {
    const config::TagLayout layout = config::tag_layout(config);
    LayerCosts costs(cluster_, config, request_.vocab, compute_, layout.axes, routes_);
    return estimate(costs, layout);
  }

  /// Adds the best layouts by tags of one number of ranks of a replica and micro-batch: the best of each list of axes,
  /// and the named strategies as tags.
  void find_tags(const Config& config, size_t most_axes, std::vector<PlannedRun>& runs) {
    const int64_t ranks = config::ranks_of_replica(config);
    for (const std::vector<int64_t>& extents : config::axis_lists(ranks, cluster_.devices_per_node)) {
      if (extents.size() > most_axes) continue;
      Config trial = config;
      trial.parallel.axes = extents;
      LayerCosts costs(cluster_, trial, request_.vocab, compute_, config::tag_axes(trial.parallel), routes_);
      const std::optional<config::TagLayout> found = costs.best(memory_limit_);
      if (!found) continue;
      config::set_tag_layout(trial, *found);
      if (!config::layout_fits(trial)) continue;
      runs.push_back(planned(trial));
      runs.back().estimate = estimate(costs, *found);
    }
  }

 private:
  double estimate(LayerCosts& costs, const config::TagLayout& layout) const {
    return costs.step_seconds(layout) * (costs.least_bytes(layout) > memory_limit_ ? 1e6 : 1);
  }
  const PlanRequest& request_;
  const Cluster& cluster_;
  const DType compute_;
  const double memory_limit_;
  RouteShares routes_;
};

/// Takes about so many of the first, and some of every strategy.
std::vector<PlannedRun> take_first(std::vector<PlannedRun>& runs, size_t most) {
  std::vector<PlannedRun> chosen, left;
  std::map<std::string, size_t> of_strategy;
  const size_t each = std::max<size_t>(4, most / 6);
  for (PlannedRun& run : runs) {
    size_t& count = of_strategy[run.strategy];
    const bool take = chosen.size() < most / 2 || count < each;
    count += take;
    (take ? chosen : left).push_back(std::move(run));
  }
  runs = std::move(left);
  return chosen;
}

/// Takes at most so many that may be faster than the best priced one: those of which the additive model says so, if it
/// errs by no more than it did for the strategy's others.
std::vector<PlannedRun> take_promising(std::vector<PlannedRun>& runs, const std::vector<PlannedRun>& priced,
                                       size_t most) {
  double best = std::numeric_limits<double>::infinity();
  std::map<std::string, double> least_ratio;  // priced over estimated, of a strategy
  for (const PlannedRun& run : priced) {
    best = std::min(best, run.time.total());
    const double ratio = run.time.total() / run.estimate;
    double& least = least_ratio.try_emplace(run.strategy, ratio).first->second;
    least = std::min(least, ratio);
  }
  std::vector<PlannedRun> chosen, left;
  for (PlannedRun& run : runs) {
    const auto ratio = least_ratio.find(run.strategy);
    const bool take = chosen.size() < most && (ratio == least_ratio.end() || run.estimate * ratio->second < best);
    (take ? chosen : left).push_back(std::move(run));
  }
  runs = std::move(left);
  return chosen;
}

}  // namespace

DType choose_compute(const Config& config, const Cluster& cluster) {
  switch (config.precision.compute) {
    case config::Compute::bf16:
      return DType::bf16;
    case config::Compute::fp32:
      return DType::f32;
    case config::Compute::fp64:
      return DType::f64;
    case config::Compute::automatic:
      break;
  }
  return cluster.peak(DType::bf16) > 1.5 * cluster.peak(DType::f32) ? DType::bf16 : DType::f32;
}

PlannedRun price_config(const Config& config, int64_t vocab, const Cluster& cluster) {
  const DType compute = choose_compute(config, cluster);
  const int64_t ranks = config::ranks_of_replica(config) * config.parallel.data;
  PlannedRun run = planned(config);
  price_into(run, vocab, cluster, machine_of(cluster, config, compute, ranks));
  return run;
}

Plan plan_layouts(const PlanRequest& request, const Cluster& cluster) {
  const double begin = now_seconds();
  Plan plan;
  plan.compute = choose_compute(request.config, cluster);
  if (cluster.peak(plan.compute) == 0)
    throw Error(Code::config, format("{}: device: no peak for {}; give tflops_{}", cluster.path, name_of(plan.compute),
                                     name_of(plan.compute)));
  if (request.devices > cluster.devices_per_node && cluster.inter.gb_per_s == 0 && cluster.collectives.empty())
    throw Error(Code::config,
                format("{}: the table [inter] is missing, but {} devices are more than the {} of one node",
                       cluster.path, request.devices, cluster.devices_per_node));
  const Machine machine = machine_of(cluster, request.config, plan.compute, request.devices);
  plan.memory_limit = static_cast<double>(machine.memory_limit);
  std::string broken;
  const std::vector<Config> all = config::enumerate_layouts(request.config, request.devices, broken);
  LayoutSearch search(request, cluster, plan.compute, plan.memory_limit);

  // Estimates of everything; those whose state alone is too large come last.
  std::vector<PlannedRun> runs;
  std::map<std::pair<int64_t, int64_t>, double> by_batch;  // best estimate of each number of replicas and micro-batch
  std::vector<const Config*> to_search;
  for (const Config& config : all) {
    if (config::wants_tags(config)) {
      to_search.push_back(&config);
      continue;
    }
    PlannedRun run = planned(config);
    run.estimate = search.estimate(config);
    double& best = by_batch.try_emplace({config.parallel.data, config.train.micro_batch}, run.estimate).first->second;
    best = std::min(best, run.estimate);
    runs.push_back(std::move(run));
  }
  // Tags are searched where the named strategies are fast, and most widely where they are fastest.
  constexpr size_t kSearched = 6, kWidely = 2;
  std::ranges::stable_sort(to_search, {}, [&](const Config* config) {
    const auto found = by_batch.find({config->parallel.data, config->train.micro_batch});
    return found == by_batch.end() ? 1e30 : found->second;
  });
  const bool alone = by_batch.empty();
  for (size_t i = 0; i < to_search.size() && (alone || i < kSearched); ++i)
    search.find_tags(*to_search[i], i < kWidely || to_search.size() <= kSearched ? 3 : 2, runs);
  plan.enumerated = static_cast<int64_t>(runs.size());
  if (runs.empty())
    throw Error(Code::config, format("no layout of {} devices suits the model and the keys that are given: {}",
                                     request.devices, broken.empty() ? "no strategy takes so many" : broken));

  // The best of all, and some of every strategy, are priced; more of them as long as nothing fits, or one of them may
  // be the fastest.
  std::ranges::stable_sort(runs, {}, &PlannedRun::estimate);
  constexpr int kMostRounds = 6;
  for (int round = 0; round < kMostRounds && !runs.empty(); ++round) {
    std::vector<PlannedRun> chosen = plan.runs.empty() ? take_first(runs, request.most_priced)
                                                       : take_promising(runs, plan.runs, request.most_priced / 2);
    if (chosen.empty()) break;
    for_each(chosen.size(), request.threads,
             [&](size_t i) { price_to_fit(chosen[i], request.vocab, cluster, machine); });
    plan.priced += static_cast<int64_t>(chosen.size());
    for (PlannedRun& run : chosen) (run.fits ? plan.runs : plan.too_large).push_back(std::move(run));
  }
  std::ranges::stable_sort(plan.runs, {}, [](const PlannedRun& run) { return run.time.total(); });
  std::ranges::stable_sort(plan.too_large, {}, [](const PlannedRun& run) { return run.plan.total; });
  plan.seconds = now_seconds() - begin;
  return plan;
}

std::string why_nothing_fits(const Plan& plan) {
  const PlannedRun& run = plan.too_large.front();
  const auto largest = std::ranges::max_element(run.plan.memory, {}, [](const auto& part) { return part.second; });
  return format(
      "no layout fits into {} of memory: the smallest, {} with {}, recompute = \"{}\" and micro_batch = {}, "
      "takes {}, most of it {} with {}; {} a device would do, or more devices",
      measure::format_bytes(plan.memory_limit), run.strategy, run.layout, config::recompute_text(run.config),
      run.config.train.micro_batch, measure::format_bytes(static_cast<double>(run.plan.total)), largest->first,
      measure::format_bytes(static_cast<double>(largest->second)),
      measure::format_bytes(static_cast<double>(run.plan.total)));
}

}  // namespace trainer::plan
