#include "plan/pricing.h"
#include "config/resolve.h"
#include "plan/offload_time.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/join.h"
#include "config/keys.h"
#include "config/layout_choices.h"
#include "config/layouts.h"
#include "config/sharding_spec.h"
#include "config/stages.h"
#include "plan/update_time.h"
#include "setup/offload_memory.h"

namespace trainer::plan {
namespace {

using config::Config;
using config::Recompute;

constexpr int64_t kFewLayers = 3;  // layers of the deeper recorded model; the other has one fewer

/// Returns a machine that represents one rank of the cluster in dry runs.
Machine machine_of(const Cluster& cluster, const Config& config, DType compute, int64_t ranks, const OwnRanks& own) {
  Machine machine;
  // GPUs use no packed weights, so any instruction set will do.
  const bool here = cluster.cpu && cluster.measured;
  machine.isa = here ? own.isa : device::Isa::avx2;
  machine.threads = here ? own.threads : 1;
  machine.compute = compute;
  machine.ranks = static_cast<int>(ranks);
  const double limit =
      config.hardware.memory_limit > 0 ? config.hardware.memory_limit * (1 << 30) : cluster.memory_bytes;
  machine.memory_limit = static_cast<int64_t>(memory_share(cluster) * limit);
  return machine;
}

/// Returns true if a run fits in device memory and its host data fits in host memory.
bool fits(const RunPlan& plan, const Cluster& cluster, int64_t limit) {
  const auto on_host = static_cast<double>(memory_of(plan).host);
  return plan.total <= limit && (cluster.cpu || !cluster.host.known() || on_host <= cluster.host.memory_bytes);
}

/// Returns a + factor · (b − a).
int64_t on_line(int64_t a, int64_t b, double factor) { return a + std::llround(factor * static_cast<double>(b - a)); }
template <typename Map>
Map on_line(const Map& a, const Map& b, double factor) {
  Map line = a;
  for (const auto& [key, value] : b) line.try_emplace(key);
  for (auto& [key, value] : line) {
    const auto found = b.find(key);
    value = on_line(value, found == b.end() ? typename Map::mapped_type() : found->second, factor);
  }
  return line;
}

/// A strategy, a number of replicas, and whether there are stages. The estimates of a family have similar relative
/// errors.
using Family = std::tuple<std::string, int64_t, bool>;
Family family_of(const PlannedRun& run) {
  return {run.strategy, run.config.parallel.data, run.config.parallel.stages > 1};
}

}  // namespace

bool has_equal_layers(const Config& config) {
  const int64_t kept = config.parallel.cache_layers;
  return (kept == 0 || kept >= config.model.n_layer) && config.parallel.layer.size() <= 1 &&
         config.offload.resident == 0 && config.model.window_full_every == 0 && nope_interval(config.model) <= 1 &&
         (config.model.n_expert == 0 || config.model.moe_every == 1) &&
         config::recomputed_layers(config) % config.model.n_layer == 0;
}

RunPlan on_line(const RunPlan& a, const RunPlan& b, double factor) {
  RunPlan line = b;
  line.memory = on_line(a.memory, b.memory, factor);
  line.comm_bytes = on_line(a.comm_bytes, b.comm_bytes, factor);
  line.parameters = on_line(a.parameters, b.parameters, factor);
  line.total = on_line(a.total, b.total, factor);
  return line;
}

void deepen_scalars(Program& less, Program& more, double factor) {
  auto before = less.begin();
  for (Event& event : more) {
    if (!is_scalar_exchange(event)) continue;
    before = std::find_if(before, less.end(), is_scalar_exchange);
    TRAINER_CHECK(before != less.end(), "the same scalars are exchanged at any depth");
    before->elements = event.elements = on_line(before->elements, event.elements, factor);
    ++before;
  }
}

PlannedRun planned(Config config) {
  PlannedRun run;
  config::drop_other_strategies(config);
  if (config::is_given(config, "parallel.expert_buffer") && config::layout_fits(config)) {
    // Runs refuse a buffer without effect.
    const int64_t ranks = config::expert_ranks(config);
    double& buffer = config.parallel.expert_buffer;
    buffer = ranks == 1 ? config::Parallel().expert_buffer : std::min(buffer, static_cast<double>(ranks));
    if (ranks == 1) config.origins.erase("parallel.expert_buffer");
  }
  run.strategy = name_of(config.parallel.strategy);
  run.layout = config::layout_text(config);
  run.config = std::move(config);
  return run;
}

std::string identity(Config config) {
  if (!config::is_given(config, "parallel.stage_layers")) config.parallel.stage_layers.clear();
  const sharding::ModelSharding sharding = config::sharding_of(config);
  config::set_tables(config, sharding);
  config::Parallel& p = config.parallel;
  std::vector<std::string*> words = {&p.head, &p.table};
  std::string schedules;
  for (config::LayerSpec& spec : p.layer)
    for (const config::SpecMember& member : config::kSpecMembers) {
      if (member.letters != nullptr && (spec.*member.member).empty())
        continue;  // experts, which nothing divides
      else if (member.letters != nullptr)
        words.push_back(&(spec.*member.member));
      else
        schedules += format(" {} {}", spec.layers, spec.*member.member);
    }
  for (size_t a = 1; a < p.axes.size();) {
    if (!std::ranges::all_of(words, [&](const std::string* word) { return (*word)[a - 1] == (*word)[a]; })) {
      ++a;
      continue;
    }
    p.axes[a - 1] *= p.axes[a];
    p.axes.erase(p.axes.begin() + static_cast<std::ptrdiff_t>(a));
    for (std::string* word : words) word->erase(a, 1);
  }
  std::string text = format("{} data {} batch {} kept {}{}", fmt::join(p.axes, " x "), p.data, config.train.micro_batch,
                            p.cache_layers, schedules);
  if (std::ranges::any_of(sharding.layers, [](const sharding::Layer& layer) {
        return layer.context.axes != 0 && layer.context.schedule == sharding::Transfer::ring;
      }))
    text += " ring";
  for (const std::string* word : words) text += " " + *word;
  return text + (p.rs_dtype == DType::f32 ? "" : format(" {}", name_of(p.rs_dtype))) + " " + text_of(sharding.stages);
}

std::vector<std::string> other_names(const Config& config) {
  const std::string own = identity(config);
  std::vector<std::string> names;
  for (const config::NamedStrategy* strategy : config::strategies()) {
    Config other = config;
    other.parallel = config::defaults().parallel;
    other.parallel.strategy = strategy->id;
    other.parallel.data = config.parallel.data;
    other.parallel.cache_layers = config.parallel.cache_layers;
    other.parallel.context = config.parallel.context;
    other.parallel.context_kv = config.parallel.context_kv;
    for (const char* name : config::kKeysOfStages) {
      const config::Key* key = config::find_key("parallel", name);
      key->set(other, key->get(config));
    }
    if (strategy->id == config.parallel.strategy) continue;
    strategy->each(other, config::ranks_of_stage(config), [&](const config::Parallel& parallel) {
      Config named = other;
      named.parallel = parallel;
      const bool chooses = config::chooses_vocab_axes(named);
      for (const config::VocabAxes axes : {config::VocabAxes::x, config::VocabAxes::xy}) {
        if (chooses) named.parallel.vocab_axes = axes;
        const std::string name =
            format("{} {}{}", strategy->name, config::replica_text(named),
                   chooses ? format(", vocab_axes = {}", config::kVocabAxesNames[static_cast<size_t>(axes)]) : "");
        if (config::layout_fits(named) && identity(named) == own && std::ranges::count(names, name) == 0)
          names.push_back(name);
        if (!chooses) break;
      }
    });
  }
  return names;
}

std::vector<PlannedRun> take_first(std::vector<PlannedRun>& runs, size_t most) {
  constexpr size_t kEach = 2;
  std::vector<PlannedRun> chosen, left;
  std::map<Family, size_t> of_family;
  std::map<int64_t, size_t> of_stages;
  for (PlannedRun& run : runs) {
    size_t &count = of_family[family_of(run)], &with_stages = of_stages[run.config.parallel.stages];
    const bool take = chosen.size() < most / 2 || count < kEach || with_stages < kEach;
    count += take;
    with_stages += take;
    (take ? chosen : left).push_back(std::move(run));
  }
  runs = std::move(left);
  return chosen;
}

std::vector<PlannedRun> take_promising(std::vector<PlannedRun>& runs, const std::vector<PlannedRun>& priced,
                                       size_t most) {
  double best = std::numeric_limits<double>::infinity();
  std::map<Family, double> least_ratio;  // priced time / estimate
  for (const PlannedRun& run : priced) {
    best = std::min(best, run.time.total());
    const double ratio = run.time.total() / run.estimate;
    double& least = least_ratio.try_emplace(family_of(run), ratio).first->second;
    least = std::min(least, ratio);
  }
  std::vector<PlannedRun> chosen, left;
  for (PlannedRun& run : runs) {
    const auto ratio = least_ratio.find(family_of(run));
    const bool take = chosen.size() < most && (ratio == least_ratio.end() || run.estimate * ratio->second < best);
    (take ? chosen : left).push_back(std::move(run));
  }
  runs = std::move(left);
  return chosen;
}

void Choice::set(Config& config) const {
  config.train.recompute = recompute;
  config.train.recompute_layers = recompute_layers;
  config.parallel.zero_stage = zero_stage;
  config.offload.optimizer = offload;
}

bool may_choose_layers(const Config& config) {
  return config.parallel.stages == 1 && !config::is_given(config, "train.recompute") &&
         !config::is_given(config, "train.recompute_layers");
}

std::vector<Choice> choices(const Config& config, const Cluster& cluster) {
  std::vector<config::OffloadOptimizer> offloads = {config.offload.optimizer};
  for (const config::OffloadOptimizer more : offload_choices(config, cluster)) offloads.push_back(more);
  std::vector<Choice> all;
  for (const config::OffloadOptimizer offload : offloads)
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      if (config::is_given(config, "train.recompute") && recompute != config.train.recompute) continue;
      const int64_t layers = recompute == Recompute::full ? 0 : config.train.recompute_layers;
      for (const int64_t zero : {0, 1})
        if (config::is_given(config, "parallel.zero_stage") ? zero == config.parallel.zero_stage
                                                            : zero == 0 || config.parallel.data > 1)
          all.push_back({recompute, layers, zero, offload});
    }
  return all;
}

DType choose_compute(const Config& config, const Cluster& cluster) {
  const bool fast = cluster.peak(DType::bf16) > 1.5 * cluster.peak(DType::f32);
  return config::type_of(config.precision.compute).value_or(fast ? DType::bf16 : DType::f32);
}

Pricer::Pricer(const Cluster& cluster, const Config& config, int64_t vocab, int64_t ranks, const OwnRanks& own)
    : cluster_(cluster),
      vocab_(vocab),
      machine_(machine_of(cluster, config, choose_compute(config, cluster), ranks, own)) {}

void Pricer::price(PlannedRun& run, Depth depth) const {
  const int64_t layers = run.config.model.n_layer;
  run.whole = depth == Depth::all || layers <= kFewLayers || !has_equal_layers(run.config);
  const auto record = [&](int64_t recorded) {
    Config config = run.config;
    config.model.n_layer = recorded;
    return this->record(config, 0);
  };
  if (run.config.parallel.stages > 1) {
    price_stages(run, depth);
  } else if (run.whole) {
    const StepProgram step = record(layers);
    run.time = plan::price(step, cluster_, machine_.compute);
    run.plan = step.plan;
  } else {
    StepProgram less = record(kFewLayers - 1), more = record(kFewLayers);
    const auto factor = static_cast<double>(layers - kFewLayers + 1);
    for (size_t i = 0; i < less.parts.size(); ++i) deepen_scalars(less.parts[i].program, more.parts[i].program, factor);
    run.time = extrapolate(plan::price(less, cluster_, machine_.compute), plan::price(more, cluster_, machine_.compute),
                           factor);
    // The matrices of the busiest rank are not proportional to the layers.
    const auto orthogonalization = [&](int64_t recorded) {
      Config config = run.config;
      config.model.n_layer = recorded;
      return cluster_.skew * orthogonalization_seconds(cluster_, config, machine_.compute);
    };
    const double less_of_it = orthogonalization(kFewLayers - 1), more_of_it = orthogonalization(kFewLayers);
    run.time.optimizer += orthogonalization(layers) - less_of_it - factor * (more_of_it - less_of_it);
    run.plan = on_line(less.plan, more.plan, factor);
    if (less.plan.backward_peaks && more.plan.backward_peaks) {
      const auto peak = [&](size_t i) {
        return on_line((*less.plan.backward_peaks)[i], (*more.plan.backward_peaks)[i], factor);
      };
      int64_t& activations = run.plan.memory.at("activations");
      const double packed =
          static_cast<double>(more.plan.memory.at("activations")) / static_cast<double>(more.plan.arena_bound);
      const auto needed = static_cast<int64_t>(packed * static_cast<double>(std::max(peak(0), peak(1))));
      run.plan.total += std::max<int64_t>(0, needed - activations);
      activations = std::max(activations, needed);
    }
    run.plan.offload = deepened(less.plan.offload, more.plan.offload, layers - kFewLayers);
    if (run.plan.offload)
      run.time.offload =
          offload_seconds(*run.plan.offload, cluster_,
                          last_backward_seconds(run.time.compute() / static_cast<double>(more.accumulation)));
    run.plan.flops = config::flops_per_token(run.config.model, vocab_, recomputed_layers(run.config));
  }
  conclude(run);
}

StepProgram Pricer::record(const Config& config, int64_t stage) const {
  Config recorded = config;
  recorded.optim.overlap = false;  // as in runs that would not fit otherwise
  if (recorded.parallel.layer.size() == 1) recorded.parallel.layer.front().layers = 0;
  return record_step(recorded, vocab_, setup::on_stage(machine_, config, stage));
}

int64_t Pricer::on_device(const RunPlan& plan) const {
  return cluster_.cpu ? plan.total : setup::memory_of(plan).device;
}

void Pricer::conclude(PlannedRun& run) const {
  run.plan.total = on_device(run.plan);
  run.fits = fits(run.plan, cluster_, machine_.memory_limit);
  const double tokens = static_cast<double>(run.config.train.global_batch * run.config.model.seq_len);
  run.tokens_per_s = tokens / run.time.total();
  run.mfu = run.plan.flops.full() * run.tokens_per_s / (machine_.ranks * cluster_.peak(machine_.compute));
}

void Pricer::price_choices(PlannedRun& run, Depth depth) const {
  constexpr double kEqual = 1.02;  // estimates closer than this factor count as equal
  constexpr auto kOnDevice = config::OffloadOptimizer::none;
  std::optional<PlannedRun> fastest, smallest;
  double least = 0;           // estimate of the first choice that fits
  Recompute recomputed = {};  // recomputation of the fastest choice
  for (const Choice& choice : run.choices) {
    // If everything fits on the device, saving more memory is never faster.
    const bool saves_more =
        fastest && !fastest->plan.offload && (choice.recompute > recomputed || choice.offload != kOnDevice);
    if (fastest && (saves_more || choice.seconds > kEqual * least)) continue;
    PlannedRun tried = run;
    choice.set(tried.config);
    tried.layout = config::layout_text(tried.config);
    price(tried, depth);
    std::optional<PlannedRun> less;
    if (choice.recompute == Recompute::full) recompute_less(less.emplace(tried), depth);
    // Memory that full recomputation saves may be better used for fewer recomputed layers than for residents.
    if (choice.offload == config::OffloadOptimizer::interleaved) {
      price_interleaved(tried, depth);
      if (less) price_interleaved(*less, depth);
    }
    if (less && less->fits && less->time.total() < tried.time.total()) tried = std::move(*less);
    if (tried.fits && !fastest) least = choice.seconds;
    if (tried.fits && (!fastest || tried.time.total() < fastest->time.total())) {
      fastest = tried;
      recomputed = choice.recompute;
    }
    if (!smallest || tried.plan.total < smallest->plan.total) smallest = std::move(tried);
  }
  run = fastest ? std::move(*fastest) : std::move(*smallest);
}

void Pricer::price_interleaved(PlannedRun& run, Depth depth) const {
  const OffloadWork& work = *run.plan.offload;
  const config::Fraction share = device_share(work, offload_rates(cluster_, work.sizes));
  run.config.offload.gpu_fraction = format("{}/{}", share.num, share.den);
  const int64_t residents = residents_within(work, static_cast<double>(machine_.memory_limit - run.plan.total));
  if (!run.fits || residents == 0) return;
  PlannedRun tried = run;
  tried.config.offload.resident = residents;
  tried.layout = config::layout_text(tried.config);
  price(tried, depth);
  if (tried.fits && tried.time.total() < run.time.total()) run = std::move(tried);
}

void Pricer::recompute_less(PlannedRun& run, Depth depth) const {
  const int64_t all = recomputed_layers(run.config);
  if (!may_choose_layers(run.config) || !run.fits || all == 0) return;
  PlannedRun least = run;
  if (depth == Depth::all) {
    const int64_t fewest = setup::fewest_recomputed_layers(run.config, 0, all, all - 1, [&](const Config& config) {
      PlannedRun tried = run;
      tried.config = config;
      price(tried, depth);
      const bool saves_as_before = !cluster_.cpu || tried.plan.memory.contains(setup::kSnapshotMemory) ==
                                                        run.plan.memory.contains(setup::kSnapshotMemory);
      if (tried.fits && saves_as_before) least = tried;
      return tried.fits && saves_as_before;
    });
    if (fewest >= all) return;
  } else {
    least.config.train.recompute = Recompute::selective;
    least.config.train.recompute_layers = 0;
    price(least, depth);
    const auto total = static_cast<double>(least.plan.total), saved = total - static_cast<double>(run.plan.total);
    if (total > memory_limit()) {
      const auto layers = static_cast<int64_t>(std::ceil((total - memory_limit()) / saved * static_cast<double>(all)));
      if (layers >= all) return;
      const double factor = static_cast<double>(layers) / static_cast<double>(all);
      least.config.train.recompute_layers = layers;
      least.time = extrapolate(least.time, run.time, factor);
      least.plan = on_line(least.plan, run.plan, factor);
      least.plan.flops = config::flops_per_token(least.config.model, vocab_, layers);
      least.whole = false;
      conclude(least);
    }
  }
  if (least.fits && least.time.total() < run.time.total()) run = std::move(least);
}

PlannedRun price_config(const Config& config, int64_t vocab, const Cluster& cluster) {
  const int64_t ranks = config::ranks_of_replica(config) * config.parallel.data;
  PlannedRun run = planned(config);
  Pricer(cluster, config, vocab, ranks).price(run);
  return run;
}

}  // namespace trainer::plan
