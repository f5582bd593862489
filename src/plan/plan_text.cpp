#include "plan/plan_text.h"

#include <algorithm>
#include <filesystem>

#include "base/files.h"
#include "base/join.h"
#include "base/units.h"
#include "config/block_linears.h"
#include "config/context.h"
#include "config/layouts.h"
#include "config/text.h"
#include "parallel/strategy.h"
#include "plan/lower_bound.h"

namespace trainer::plan {
namespace {

double ms(double seconds) { return seconds * 1e3; }

int64_t bytes_of(const PlannedRun& run) {
  int64_t sum = 0;
  for (const auto& [axis, operations] : run.plan.comm_bytes)
    for (const auto& [operation, bytes] : operations) sum += bytes;
  return sum;
}

std::string along(const std::string& axis) {
  return axis == "control" ? "scalars (gradient norm, loss)" : "along " + axis;
}
std::string exposed(const std::string& axis) { return (axis == "control" ? "exposed: " : "exposed ") + along(axis); }

/// Compares the bytes that each rank sends with the lower bound for the GEMMs of linears (lower_bound.h). The bound of
/// the forward GEMM counts twice: each operand is gathered once, and its gradient or the operand itself reduced once.
std::string lower_bound_text(const PlannedRun& run, DType compute) {
  const int64_t ranks = config::ranks_of_stage(run.config), stages = run.config.parallel.stages;
  if (ranks == 1) return "";
  const config::Model& m = run.config.model;
  const auto rows = static_cast<double>(run.config.train.micro_batch * m.seq_len);
  double least = 0;
  for (int64_t layer = 0; layer < m.n_layer; ++layer)
    for (const config::BlockLinear& linear : linears_of(m, layer))
      least += 2 * static_cast<double>(linear.active) *
               least_words({rows, static_cast<double>(linear.in), static_cast<double>(linear.out())}, ranks);
  const int64_t steps = run.config.train.global_batch / (run.config.train.micro_batch * run.config.parallel.data);
  least *= static_cast<double>(steps * size_of(compute)) / static_cast<double>(stages);
  const mesh::MeshShape mesh =
      parallel::mesh_shape(config::sharding_on(run.config, ranks * stages * run.config.parallel.data));
  double moved = 0;
  for (const auto& [axes, operations] : run.plan.comm_bytes) {
    mesh::AxisSet set = 0;
    for (size_t begin = 0; begin < axes.size();) {
      const size_t end = std::min(axes.find('+', begin), axes.size());
      set |= mesh.set(axes.substr(begin, end - begin));
      begin = end + 1;
    }
    if ((set & mesh.set("data")) != 0 || axes == "stage") continue;
    for (const auto& [operation, bytes] : operations) moved += static_cast<double>(bytes) / mesh.group_size(set);
  }
  return format(
      "each rank sends {} within its {}; lower bound for the matmuls of linears without replicated operands: {}\n",
      format_bytes(moved), stages == 1 ? "replica" : "stage", format_bytes(least));
}

/// Returns the part of a step that makes `run` slower than `than`: "exposed communication +12.3 ms"; empty if no part
/// is slower.
std::string what_is_slower(const PlannedRun& run, const PlannedRun& than) {
  // Strategies name their axes differently, so exposed communication along all axes counts as one part.
  std::pair<const char*, double> largest{"exposed communication", run.time.exposed() - than.time.exposed()};
  for (const auto& [name, part] : kStepParts)
    if (const double more = run.time.*part - than.time.*part; more > largest.second) largest = {name, more};
  if (largest.second <= 0) return "";
  return format("{} +{:.3g} ms", largest.first, ms(largest.second));
}

/// An improvement of the machine, and the step time with it; lists begin with the largest gain.
struct Sensitivity {
  std::string what;
  double seconds = 0;  // predicted time of a step with this improvement
};
std::vector<Sensitivity> sensitivities(const PlannedRun& run, const Cluster& cluster, int64_t vocab) {
  const auto priced = [&](const auto& change) {
    Cluster other = cluster;
    change(other);
    return price_config(run.config, vocab, other).time.total();
  };
  const auto faster = [](Link& link) { link.gb_per_s *= 2; };
  std::vector<Sensitivity> all;
  all.push_back({"matmuls twice as fast", priced([](Cluster& c) {
                   for (auto& [compute, peak] : c.peaks) peak *= 2;
                   for (ProductPoint& point : c.products) point.flops *= 2;
                   for (AttentionPoint& point : c.attentions) point.flops *= 2;
                 })});
  all.push_back({"memory twice as fast", priced([](Cluster& c) {
                   c.memory_rate *= 2;
                   for (auto& [kind, rate] : c.operators) rate *= 2;
                 })});
  if (cluster.intra.gb_per_s > 0)
    all.push_back({"links within nodes twice as fast", priced([&](Cluster& c) {
                     faster(c.intra);
                     for (CollectivePoint& point : c.collectives)
                       if (point.per_node == point.ranks) point.seconds /= 2;
                   })});
  if (cluster.inter.gb_per_s > 0)
    all.push_back({"links between nodes twice as fast", priced([&](Cluster& c) {
                     faster(c.inter);
                     for (CollectivePoint& point : c.collectives)
                       if (point.per_node < point.ranks) point.seconds /= 2;
                   })});
  if (run.time.offload > 0 && cluster.host.known())
    all.push_back({"hosts twice as fast", priced([](Cluster& c) {
                     for (double Host::*rate : {&Host::memory_rate, &Host::to_device, &Host::to_host, &Host::updates})
                       c.host.*rate *= 2;
                   })});
  all.push_back({"no latency", priced([](Cluster& c) {
                   c.operator_seconds = 0;
                   for (Link* link : {&c.intra, &c.inter}) link->start_us = link->hop_us = 0;
                 })});
  std::ranges::stable_sort(all, {}, &Sensitivity::seconds);
  return all;
}

}  // namespace

std::vector<std::pair<std::string, double>> parts(const StepTime& time) {
  std::vector<std::pair<std::string, double>> all;
  for (const auto& [name, part] : kStepParts) all.emplace_back(name, time.*part);
  for (const auto& [axis, comm] : time.comm) all.emplace_back(exposed(axis), comm.exposed);
  return all;
}

std::string to_text(const Plan& plan, const Cluster& cluster, size_t top) {
  std::string text = format(
      "{}{}: layouts estimated: {}; simulated: {}, the most promising ones and their variants "
      "({:.1f} s); {} of memory per rank, {}\n",
      cluster.name, cluster.measured ? "" : " (data sheet, not calibrated)", plan.enumerated, plan.priced, plan.seconds,
      format_bytes(plan.memory_limit), name_of(plan.compute));
  if (!plan.left_out.empty()) text += format("not tried: {}\n", fmt::join(plan.left_out, "; "));
  if (plan.spares_bf16_gradients)
    text +=
        "parallel.rs_dtype = \"bf16\" halves the bytes of weight gradients but rounds their sums; it is tried with "
        "--free "
        "parallel.rs_dtype\n";
  const size_t shown = std::min(top, plan.runs.size());
  size_t width = 26;  // width of the layout column
  for (size_t i = 0; i < shown; ++i) width = std::max(width, plan.runs[i].layout.size());
  // The column "bubble" is shown only if a row has several stages.
  const bool staged = std::ranges::any_of(plan.runs.begin(), plan.runs.begin() + static_cast<std::ptrdiff_t>(shown),
                                          [](const PlannedRun& run) { return run.config.parallel.stages > 1; });
  const auto bubble = [&](const std::string& share) { return staged ? format(" {:>8}", share) : ""; };
  text += format("{:>4} {:<12} {:<{}} {:>5} {:<12} {:>10}{} {:>9} {:>9} {:>9} {:>9} {:>10} {:>10} {:>7}  {}\n", "row",
                 "strategy", "layout", width, "batch", "recompute", "ms/step", bubble("bubble"), "compute", "exposed",
                 "optimizer", "memory", "wire bytes", "tokens/s", "mfu", "slower by");
  for (size_t i = 0; i < shown; ++i) {
    const PlannedRun& run = plan.runs[i];
    std::vector<std::string> notes;
    if (std::string slower = i == 0 ? "" : what_is_slower(run, plan.runs.front()); !slower.empty())
      notes.push_back(std::move(slower));
    for (const std::string& name : other_names(run.config)) notes.push_back("also " + name);
    text += format(
        "{:>4} {:<12} {:<{}} {:>5} {:<12} {:>10.4g}{} {:>9.4g} {:>9.4g} {:>9.4g} {:>9} {:>10} {:>10} {:>7}  {}\n",
        i + 1, run.strategy, run.layout, width, run.config.train.micro_batch, config::recompute_text(run.config.train),
        ms(run.time.total()), bubble(run.config.parallel.stages > 1 ? format_percent(run.time.bubble) : "-"),
        ms(run.time.compute() + run.time.slowed), ms(run.time.exposed()), ms(run.time.optimizer + run.time.offload),
        format_bytes(run.plan.total), format_bytes(bytes_of(run)), format_count(run.tokens_per_s),
        format_percent(run.mfu), fmt::join(notes, "; "));
  }
  if (staged)
    text += "bubble: share of the step in which ranks wait for other stages, in exposed and at the end of the step\n";
  if (!plan.runs.empty() && !plan.runs.front().plan.stage_totals.empty()) {
    text += "row 1:\n";
    for (const std::string& line : setup::stage_lines(plan.runs.front().config, plan.runs.front().plan))
      text += "  " + line + "\n";
  }
  if (!plan.runs.empty() && !plan.runs.front().plan.offload)
    text += format("update of row 1: {}\n",
                   setup::update_text(plan.runs.front().plan.update, plan.runs.front().time.optimizer));
  if (!plan.runs.empty())
    if (const std::string exchange = setup::exchange_text(plan.runs.front().config, plan.compute); !exchange.empty())
      text += format("row 1: {} ({} of the step); one round up to load {:g}\n", exchange,
                     format_percent(plan.runs.front().time.exchange / plan.runs.front().time.total()),
                     plan.runs.front().config.parallel.expert_buffer);
  if (!plan.too_large.empty()) {
    const PlannedRun& run = plan.too_large.front();
    text +=
        format("simulated layouts that do not fit in memory: {}; the smallest, {} with {}, exceeds the limit by {}\n",
               plan.too_large.size(), run.strategy, run.layout,
               format_bytes(static_cast<double>(run.plan.total) - plan.memory_limit));
  }
  return text;
}

ErrorBand error_band(const Cluster& cluster) {
  // With profiles, predictions for single layouts are off by up to 24 % (tests/bench/RESULTS.md). With data sheets,
  // published runs took 1.06 to 1.29 times the prediction (tests/unit/plan/published_runs_test.cpp), and the links of
  // other clusters are less certain.
  return cluster.measured ? ErrorBand{0.8, 1.25} : ErrorBand{0.8, 1.4};
}

std::string explain(const Plan& plan, const Cluster& cluster, const PlanRequest& request) {
  const PlannedRun& best = plan.runs.front();
  const double total = best.time.total();
  std::string text = format("\nbreakdown of the {:.4g} ms of {} with {}\n", ms(total), best.strategy, best.layout);
  for (const auto& [name, seconds] : parts(best.time))
    if (seconds > 0) text += format("  {:<34}{:>10.4g} ms {:>8}\n", name, ms(seconds), format_percent(seconds / total));
  text += "communication, overlapped or not (a+b: one group of ranks over both mesh axes)\n";
  for (const auto& [axis, comm] : best.time.comm) {
    int64_t bytes = 0;
    const auto found = best.plan.comm_bytes.find(axis);
    if (found != best.plan.comm_bytes.end())
      for (const auto& [operation, count] : found->second) bytes += count;
    text +=
        format("  {:<34}{:>10.4g} ms {:>8} overlapped, {}\n", along(axis), ms(comm.busy),
               format_percent(comm.busy > 0 ? std::max(0.0, 1 - comm.exposed / comm.busy) : 1), format_bytes(bytes));
  }
  text += lower_bound_text(best, plan.compute);
  const std::vector<Sensitivity> all = sensitivities(best, cluster, request.vocab);
  text += "sensitivity: the step with\n";
  for (const Sensitivity& each : all)
    text += format("  {:<34}{:>10.4g} ms {:>+8.1f} %\n", each.what, ms(each.seconds), 100 * (each.seconds / total - 1));
  const auto other =
      std::ranges::find_if(plan.runs, [&](const PlannedRun& run) { return run.strategy != best.strategy; });
  if (other != plan.runs.end()) {
    text += format("the next strategy, {} with {}, takes {:.4g} ms: {}\n", other->strategy, other->layout,
                   ms(other->time.total()), what_is_slower(*other, best));
    const std::vector<Sensitivity> theirs = sensitivities(*other, cluster, request.vocab);
    bool any = false;
    for (const Sensitivity& each : theirs) {
      const auto mine = std::ranges::find(all, each.what, &Sensitivity::what);
      if (mine == all.end() || each.seconds >= mine->seconds) continue;
      text += format("  it would be faster with {}: {:.4g} instead of {:.4g} ms\n", each.what, ms(each.seconds),
                     ms(mine->seconds));
      any = true;
    }
    if (!any) text += "  it would not be faster with any of the above\n";
  }
  if (best.time.unmeasured > 0)
    text += format("{:.4g} ms of communication were computed from the constants in {}, not from measured collectives\n",
                   ms(best.time.unmeasured), cluster.path);
  return text;
}

std::string emitted(const PlannedRun& run, const Cluster& cluster) {
  std::string text = format(
      "# {} with {}, planned for {}{}\n# Predicted: {:.4g} ms/step ({:.4g} compute, {:.4g} exposed communication, "
      "{:.4g} optimizer), {} per rank. hardware.profile makes a run report its speed relative to it.\n",
      run.strategy, run.layout, cluster.name, cluster.measured ? "" : " (data sheet, not calibrated)",
      ms(run.time.total()), ms(run.time.compute() + run.time.slowed), ms(run.time.exposed()),
      ms(run.time.optimizer + run.time.offload), format_bytes(run.plan.total));
  config::Config config = run.config;
  config.hardware.profile = std::filesystem::absolute(expand_home(cluster.path)).lexically_normal().string();
  return text + config::to_toml(config);
}

std::string why_nothing_fits(const Plan& plan) {
  const PlannedRun& run = plan.too_large.front();
  const auto largest = std::ranges::max_element(run.plan.memory, {}, [](const auto& part) { return part.second; });
  const auto [limit, needed] = format_bytes_apart(plan.memory_limit, static_cast<double>(run.plan.total));
  const bool limited = config::is_given(run.config, "hardware.memory_limit");
  std::string remedy = limited ? "raise hardware.memory_limit" : "use devices with at least " + needed;
  if (config::is_given(run.config, "train.micro_batch") && run.config.train.micro_batch > 1)
    remedy += ", let the planner choose train.micro_batch";
  const std::string lengths =
      config::nearest_lengths(run.config, config::ranks_of_replica(run.config) * run.config.parallel.data);
  return format(
      "no layout fits into {} of memory per rank: the smallest, {} with {}, recomputation {} and micro_batch = {}, "
      "needs {}, of which {} takes {}; {}, or use more devices{}",
      limit, run.strategy, run.layout, config::recompute_text(run.config.train), run.config.train.micro_batch, needed,
      largest->first, format_bytes(largest->second), remedy, lengths.empty() ? "" : "; " + lengths);
}

}  // namespace trainer::plan
