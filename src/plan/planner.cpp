#include "plan/planner.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <span>

#include "base/clock.h"
#include "base/error.h"
#include "base/join.h"
#include "base/units.h"
#include "config/context.h"
#include "config/keys.h"
#include "config/layout_choices.h"
#include "config/layouts.h"
#include "config/sharding_spec.h"
#include "config/stages.h"
#include "device/thread_pool.h"
#include "plan/layout_search.h"
#include "plan/obstacles.h"
#include "plan/update_time.h"

namespace trainer::plan {
namespace {

using config::Config;

/// Returns the largest number of mesh axes that a stage's ranks can be factored into.
int prime_factors(const Config& config) {
  int count = 0;
  int64_t ranks = config::ranks_of_stage(config);
  for (int64_t factor = 2; ranks > 1; ++factor)
    for (; ranks % factor == 0; ranks /= factor) ++count;
  return count;
}

/// True if all ranks of an axis compute the same GEMMs: fewer ranks would be as fast.
bool repeats_gemms(const PlannedRun& run) {
  const sharding::ModelSharding layout = inside_stage(config::sharding_of(run.config));
  sharding::AxisSet split = layout.data();
  for (const sharding::Layer& layer : layout.layers)
    for (const auto& [site, l] : layer.linears) split |= l.rows | l.cols | l.contraction;
  return layout.wide(layout.all() & ~split) != 0;
}

/// The state of planning one run.
class Planning {
 public:
  /// `as_specs`: named layouts are returned as sharding specs.
  Planning(const PlanRequest& request, const Cluster& cluster, bool as_specs)
      : request_(request),
        as_specs_(as_specs),
        cluster_(cluster),
        pricer_(cluster, request.config, request.vocab, request.devices, request.own),
        pool_(std::max(1, request.threads)),
        search_(cluster, request.vocab, pricer_.compute(), pricer_.memory_limit()) {
    plan_.compute = pricer_.compute();
    plan_.memory_limit = pricer_.memory_limit();
  }

  Plan run() {
    std::vector<PlannedRun> runs = estimate_all();
    plan_.enumerated = static_cast<int64_t>(runs.size());
    // First the best estimates and some layouts of every family are priced; then more, as long as nothing fits or one
    // of the remaining layouts may be the fastest.
    std::ranges::stable_sort(runs, {}, &PlannedRun::estimate);
    for (int round = 0; round < kMostRounds && !runs.empty(); ++round) {
      std::vector<PlannedRun> chosen = plan_.runs.empty() ? take_first(runs, request_.most_priced)
                                                          : take_promising(runs, plan_.runs, request_.most_priced / 2);
      if (chosen.empty()) break;
      price(std::move(chosen));
      confirm(1);
    }
    if (!plan_.runs.empty()) note_unpriced(std::move(runs));
    vary();
    if (searches_specs_) refine_specs();
    if (as_specs_) write_as_specs();
    keep_fastest_specs();
    confirm(request_.shown);
    recompute_less();
    if (plan_.runs.empty() && plan_.too_large.empty()) obstacles_.throw_first();
    if (obstacles_.count() > 0) plan_.left_out.push_back(obstacles_.text());
    if (std::string lengths = config::nearest_lengths(request_.config, request_.devices); !lengths.empty())
      plan_.left_out.push_back(std::move(lengths));
    if (std::ranges::any_of(plan_.runs, [](const PlannedRun& run) { return run.config.parallel.stages > 1; }))
      leave_out("{}sharding specs and recomputation that differ between stages",
                config::is_given(request_.config, "parallel.pipeline_schedule") ? "" : "the schedule zb-h1, ");
    if (!plan_.runs.empty() && plan_.runs.front().config.parallel.stages > 1)
      pricer_.add_stage_totals(plan_.runs.front());
    plan_.spares_bf16_gradients = !plan_.runs.empty() && !request_.bf16_gradients &&
                                  !config::is_given(request_.config, "parallel.rs_dtype") &&
                                  scatters_in_fp32(plan_.runs.front());
    std::ranges::stable_sort(plan_.too_large, {}, [](const PlannedRun& run) { return run.plan.total; });
    return std::move(plan_);
  }

 private:
  static constexpr int kMostRounds = 6;

  /// Returns all layouts with their estimates; those whose state by itself does not fit come last.
  std::vector<PlannedRun> estimate_all() {
    std::string broken;
    std::vector<Config> all = config::enumerate_layouts(request_.config, request_.devices, broken);
    for (Config& config : all) config::choose_vocab_axes(config, request_.vocab, plan_.compute);
    std::vector<PlannedRun> runs;
    // The best estimate by number of stages and of replicas and micro-batch.
    std::map<std::array<int64_t, 3>, double> by_batch;
    const auto batch_of = [](const Config& config) {
      return std::array{config.parallel.stages, config.parallel.data, config.train.micro_batch};
    };
    std::vector<const Config*> to_search;
    for (const Config& config : all) {
      if (config::needs_spec(config)) {
        to_search.push_back(&config);
        continue;
      }
      PlannedRun run = planned(config);
      if (!builds(run, [&](PlannedRun& built) { search_.estimate(built); })) continue;
      double& best = by_batch.try_emplace(batch_of(config), run.estimate).first->second;
      best = std::min(best, run.estimate);
      runs.push_back(std::move(run));
    }
    // Sharding specs are searched only for those pairs of replica count and micro-batch with which the named strategies
    // are fast, and most thoroughly for the fastest pair.
    constexpr size_t kSearched = 6, kWidely = 6;
    std::ranges::stable_sort(to_search, {}, [&](const Config* config) {
      const auto found = by_batch.find(batch_of(*config));
      return found == by_batch.end() ? 1e30 : found->second;
    });
    const bool only_specs = by_batch.empty();
    searches_specs_ = !to_search.empty();
    if (!only_specs && to_search.size() > kSearched)
      leave_out("sharding specs for {} of {} combinations of stages, data and micro_batch",
                to_search.size() - kSearched, to_search.size());
    if (!config::is_given(request_.config, "parallel.axes") &&
        std::ranges::any_of(to_search, [](const Config* config) { return prime_factors(*config) > 3; }))
      leave_out("sharding specs over more than 3 mesh axes");
    const size_t searches = only_specs ? to_search.size() : std::min(kSearched, to_search.size());
    for (size_t i = 0; i < searches; ++i) {
      PlannedRun searched = planned(*to_search[i]);
      builds(searched, [&](PlannedRun&) {
        search_.find_specs(*to_search[i], i < kWidely || to_search.size() <= kSearched ? 3 : 2, searches, runs);
      });
    }
    std::erase_if(runs, [&](const PlannedRun& run) { return !seen_.insert(identity(run.config)).second; });
    if (searches_specs_ && std::ranges::all_of(runs, repeats_gemms))
      runs.clear();  // given specs are planned as they are
    if (runs.empty()) {
      obstacles_.throw_first();
      std::vector<std::string> fitting = config::nearest_batches(request_.config, request_.devices);
      if (const auto counts = config::nearest_device_counts(request_.config, request_.devices); !counts.empty())
        fitting.insert(fitting.begin(), format("{} devices", fmt::join(counts, " or ")));
      if (!fitting.empty()) fitting.front() += " would fit";
      const std::string lengths = config::nearest_lengths(request_.config, request_.devices);
      throw Error(Code::config,
                  format("no layout on {} devices fits the model and the given keys: {}{}{}", request_.devices,
                         broken.empty() ? "no strategy supports this number of devices" : broken,
                         fitting.empty() ? "" : format("; {}", fmt::join(fitting, ", or ")),
                         lengths.empty() ? "" : "; " + lengths));
    }
    return runs;
  }

  /// Attempts work(run); counts its obstacle.
  template <typename F>
  bool builds(PlannedRun& run, F&& work) {
    if (Obstacles::attempt(run, work)) return true;
    obstacles_.count(run);
    return false;
  }

  void price(std::vector<PlannedRun> runs) {
    for_each(runs, [&](PlannedRun& run) { pricer_.price_choices(run); });
    add(std::move(runs));
  }

  /// Prices a run as it is. If it does not fit, it takes more recomputed layers, of which it may have interpolated too
  /// few, or the fastest of its choices that fits.
  void price_or_save_memory(PlannedRun& run, Depth depth) const {
    pricer_.price(run, depth);
    int64_t& layers = run.config.train.recompute_layers;
    const int64_t most = may_choose_layers(run.config) && layers > 0 ? run.config.model.n_layer - 1 : 0;
    while (static_cast<double>(run.plan.total) > pricer_.memory_limit() && layers < most) {
      ++layers;
      pricer_.price(run, depth);
    }
    if (run.fits || run.choices.empty()) return;
    run.config = reopened(run.config);
    pricer_.price_choices(run, depth);
  }

  void add(std::vector<PlannedRun> runs) {
    plan_.priced += static_cast<int64_t>(runs.size());
    sort_in(std::move(runs));
  }

  void sort_in(std::vector<PlannedRun> runs) {
    for (PlannedRun& run : runs) {
      if (run.obstacle) {
        obstacles_.count(run);
        continue;
      }
      (run.fits ? plan_.runs : plan_.too_large).push_back(std::move(run));
    }
    std::ranges::stable_sort(plan_.runs, {}, [](const PlannedRun& run) { return run.time.total(); });
  }

  /// Records the `most` fastest runs with all layers.
  void confirm(size_t most) {
    for (;;) {
      const auto end = plan_.runs.begin() + static_cast<std::ptrdiff_t>(std::min(most, plan_.runs.size()));
      const auto begin =
          std::stable_partition(plan_.runs.begin(), end, [](const PlannedRun& run) { return run.whole; });
      if (begin == end) return;
      std::vector<PlannedRun> runs(std::make_move_iterator(begin), std::make_move_iterator(end));
      plan_.runs.erase(begin, end);
      for_each(runs, [&](PlannedRun& run) { price_or_save_memory(run, Depth::all); });
      sort_in(std::move(runs));
    }
  }

  /// Makes the runs that are shown recompute as few layers as fit, which were interpolated so far.
  void recompute_less() {
    const size_t shown = std::min(request_.shown, plan_.runs.size());
    for_each(std::span(plan_.runs).first(shown), [&](PlannedRun& run) { pricer_.recompute_less(run, Depth::all); });
    for (PlannedRun& run : plan_.runs) run.obstacle.reset();  // the run as it is can be built
    sort_in({});
  }

  /// Attempts work(run) for each run, on several threads.
  template <typename F>
  void for_each(std::span<PlannedRun> runs, F&& work) {
    pool_.parallel_for(std::ssize(runs), [&](int64_t i) { Obstacles::attempt(runs[static_cast<size_t>(i)], work); });
  }

  template <typename... Args>
  void leave_out(fmt::format_string<Args...> text, Args&&... args) {
    plan_.left_out.push_back(format(text, std::forward<Args>(args)...));
  }

  /// Reports the layouts that were not priced: those that may be faster but exceed the number of rounds, and all
  /// others.
  void note_unpriced(std::vector<PlannedRun> runs) {
    const size_t promising = take_promising(runs, plan_.runs, runs.size()).size();
    if (promising > 0)
      leave_out("{} after {} rounds of simulation", counted(promising, "promising layout"), kMostRounds);
    if (!runs.empty()) leave_out("{} with slower estimates", counted(runs.size(), "layout"));
  }

  /// True if weight gradients are reduce-scattered in fp32 and could be in bf16.
  bool scatters_in_fp32(const PlannedRun& run) const {
    return config::find_key("parallel", "rs_dtype")->belongs(run.config.parallel.strategy) &&
           run.config.parallel.rs_dtype == DType::f32 && plan_.compute == DType::bf16 &&
           config::sharding_of(run.config).gathers_weights();
  }

  /// Prices variants of the fastest layouts of each strategy (config::variants).
  void vary() {
    constexpr size_t kVaried = 4;
    constexpr double kGain = 1.5;  // no variant is expected to be faster by more than this factor
    std::map<std::pair<std::string, bool>, size_t> of_strategy;  // without and with stages
    int64_t not_varied = 0;
    std::vector<PlannedRun> variants;
    for (const PlannedRun& run : plan_.runs) {
      if (run.time.total() > kGain * plan_.runs.front().time.total()) break;
      std::vector<Config> others = config::variants(run.config, cluster_.devices_per_node);
      std::ranges::move(config::stage_variants(run.config), std::back_inserter(others));
      if (request_.bf16_gradients && scatters_in_fp32(run)) {
        std::vector<Config> rounded = others;
        rounded.push_back(run.config);
        for (Config& config : rounded) config.parallel.rs_dtype = DType::bf16;
        others.insert(others.end(), rounded.begin(), rounded.end());
      }
      if (others.empty()) continue;
      if (++of_strategy[{run.strategy, run.config.parallel.stages > 1}] > kVaried) {
        ++not_varied;
        continue;
      }
      for (Config& config : others) {
        if (may_choose_layers(config) && config.train.recompute_layers > 0) {  // a variant may need more or fewer
          config.train.recompute = config::Recompute::full;
          config.train.recompute_layers = 0;
        }
        if (!seen_.insert(identity(config)).second) continue;
        variants.push_back(planned(std::move(config)));
        variants.back().estimate = run.estimate;
        variants.back().choices = run.choices;
      }
    }
    if (not_varied > 0)
      leave_out("variants of {} beyond the {} fastest of each strategy", counted(not_varied, "layout"), kVaried);
    for_each(variants, [&](PlannedRun& run) {
      price_or_save_memory(run, Depth::few);
      pricer_.recompute_less(run, Depth::few);
    });
    add(std::move(variants));
  }

  /// Resets the offload settings and the number of recomputed layers of a priced layout to those of the request.
  Config reopened(Config config) const {
    config.offload = request_.config.offload;
    config.train.recompute_layers = request_.config.train.recompute_layers;
    return config;
  }

  /// Moves from the fastest layout, as a sharding spec, to its neighbours as long as one of them is faster. Before it
  /// ends, tries the neighbours of the next layout that is nearly as fast, too. The additive model proposes neighbours;
  /// their simulated times decide.
  void refine_specs() {
    constexpr double kNearly = 1.05;
    constexpr int kMostInVain = 2;
    bool complete = true;
    std::set<std::string> walked;
    confirm(1);
    for (int round = 0, in_vain = 0; in_vain < kMostInVain; ++round) {
      const double best = plan_.runs.empty() ? 0 : plan_.runs.front().time.total();
      const auto start = std::ranges::find_if(plan_.runs, [&](const PlannedRun& run) {
        return run.time.total() <= kNearly * best && config::ranks_of_stage(run.config) > 1 &&
               !walked.contains(identity(run.config));
      });
      if (start == plan_.runs.end()) break;
      if (round == kMostRounds) return leave_out("further changes of axes, after {} rounds", kMostRounds);
      walked.insert(identity(start->config));
      Config fast = reopened(start->config);
      config::set_tables(fast, config::sharding_of(fast));
      std::vector<PlannedRun> next, neighbours;
      complete |= in_vain == 0;
      PlannedRun from = planned(fast);
      builds(from, [&](PlannedRun&) { neighbours = search_.neighbours(fast); });
      for (PlannedRun& run : neighbours) {
        if (seen_.contains(identity(run.config))) continue;
        if (next.size() == request_.most_priced / 2) {
          complete = false;
          break;
        }
        seen_.insert(identity(run.config));
        next.push_back(std::move(run));
      }
      price(std::move(next));
      confirm(1);
      in_vain = plan_.runs.empty() || plan_.runs.front().time.total() >= best ? in_vain + 1 : 0;
    }
    if (!complete) leave_out("all but the {} most promising changes of an axis", request_.most_priced / 2);
  }

  void write_as_specs() {
    for (std::vector<PlannedRun>* const runs : {&plan_.runs, &plan_.too_large}) {
      std::erase_if(*runs, [&](PlannedRun& run) {
        if (config::has_spec(run.config)) return false;
        config::set_tables(run.config, config::sharding_of(run.config));
        if (!config::layout_fits(run.config)) return true;
        PlannedRun twin = planned(std::move(run.config));
        run.config = std::move(twin.config);
        run.strategy = std::move(twin.strategy);
        run.layout = std::move(twin.layout);
        run.whole = false;  // to be recorded again
        return false;
      });
    }
  }

  /// Drops layouts that differ from a faster one only in their sharding spec or in the number of recomputed layers:
  /// lists show only axes, so such layouts would look almost the same.
  void keep_fastest_specs() {
    std::set<std::string> shown;
    std::erase_if(plan_.runs, [&](const PlannedRun& run) {
      if (!config::has_spec(run.config)) return false;
      const std::string text = format("{}, {}, {}", run.layout, run.config.train.micro_batch,
                                      config::kRecomputeNames[static_cast<size_t>(run.config.train.recompute)]);
      return !shown.insert(text).second;
    });
  }

  const PlanRequest& request_;
  const bool as_specs_;
  const Cluster& cluster_;
  const Pricer pricer_;
  device::ThreadPool pool_;
  LayoutSearch search_;
  Plan plan_;
  std::set<std::string> seen_;
  Obstacles obstacles_;
  bool searches_specs_ = false;
};

}  // namespace

Plan plan_layouts(const PlanRequest& request, const Cluster& cluster) {
  const double begin = now_seconds();
  const DType compute = choose_compute(request.config, cluster);
  if (const std::optional<DType> type = type_without_peak(cluster, request.config, compute))
    throw Error(Code::config,
                format("{}: device: no peak for {}; add tflops_{}", cluster.path, name_of(*type), name_of(*type)));
  if (request.devices > cluster.devices_per_node && cluster.inter.gb_per_s == 0)
    throw Error(Code::config,
                format("{}: {}{} devices of one node, and the table [inter] is missing; add it to plan for {} "
                       "devices, or limit the plan to one node with --devices {}",
                       cluster.path, cluster.measured ? "the profile measured " : "it describes ",
                       cluster.devices_per_node, request.devices, cluster.devices_per_node));
  // The named layouts are sharding specs too: they are searched as widely as if no strategy were given.
  const bool as_specs = config::needs_spec(request.config) && !config::is_given(request.config, "parallel.axes");
  PlanRequest open = request;
  if (as_specs) open.config.parallel.strategy = config::StrategyName::automatic;
  Plan plan = Planning(open, cluster, as_specs).run();
  plan.seconds = now_seconds() - begin;
  return plan;
}

}  // namespace trainer::plan
