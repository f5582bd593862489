#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/plan_page.h"
#include "cli/process.h"
#include "cli/ranks.h"
#include "config/keys.h"
#include "config/layouts.h"
#include "config/load.h"
#include "config/stages.h"
#include "config/text.h"
#include "data/source.h"
#include "plan/plan_text.h"
#include "plan/prediction.h"
#include "plan/run_cost.h"

namespace trainer::cli {
namespace {

using nlohmann::json;

/// True for the keys of pipeline stages.
bool is_of_stages(const config::Key& key) {
  return key.section == "parallel" && std::ranges::count(config::kKeysOfStages, key.name) > 0;
}

json to_json(const plan::PlannedRun& run, const plan::Cluster& cluster) {
  const plan::RunCost cost = cost_of(run, cluster);
  json parts = json::object(), comm = json::object();
  for (const auto& [name, seconds] : plan::parts(run.time)) parts[name] = seconds;
  for (const auto& [axis, part] : run.time.comm)
    comm[axis] = {{"seconds", part.busy}, {"exposed_seconds", part.exposed}};
  json keys = json::object();  // keys of the layout, as TOML values
  for (const config::Key& key : config::keys())
    if (key.path() == "parallel.strategy" || key.belongs(run.config.parallel.strategy) ||
        (run.config.parallel.stages > 1 && is_of_stages(key)))
      keys[key.name] = config::to_toml(key.get(run.config));
  json update;  // null unless the run is recorded with all layers and without offload
  if (run.whole && !run.plan.offload)
    update = {{"flops", run.plan.update.flops},
              {"memory_traffic", run.plan.update.bytes},
              {"sent_bytes", run.plan.update.sent},
              {"seconds", run.time.optimizer}};
  const bool stages = run.config.parallel.stages > 1;
  return {{"strategy", run.strategy},
          {"keys", keys},
          {"layout", run.layout},
          {"other_names", plan::other_names(run.config)},
          {"data", run.config.parallel.data},
          {"micro_batch", run.config.train.micro_batch},
          {"recompute", config::kRecomputeNames[static_cast<size_t>(run.config.train.recompute)]},
          {"recompute_layers", run.config.train.recompute_layers},
          {"zero_stage", run.config.parallel.zero_stage},
          {"step_seconds", run.time.total()},
          {"bubble", stages ? json(run.time.bubble) : json()},
          {"parts", parts},
          {"communication", comm},
          {"update", update},
          {"memory_bytes", run.plan.total},
          {"memory", run.plan.memory},
          {"comm_bytes", run.plan.comm_bytes},
          {"tokens_per_s", run.tokens_per_s},
          {"mfu", run.mfu},
          {"run_seconds", cost.seconds},
          {"device_hours", cost.device_hours},
          {"price", cost.price > 0 ? json(cost.price) : json()},
          {"unmeasured_seconds", run.time.unmeasured},
          {"fits", run.fits}};
}

/// Explains the columns of the table.
constexpr const char* kLegend =
    "ms/step = compute (matmuls, attention, other operators) + exposed (communication that is not overlapped)\n"
    "          + optimizer (update and offload)\n"
    "batch: train.micro_batch; recompute: selective+6 recomputes 6 layers fully, the rest selectively;\n"
    "memory: peak of one rank; wire bytes: sent per step by one group of ranks of each axis;\n"
    "tokens/s: total over all ranks; slower by: the part of the time that differs most from the first row\n";

/// True if the planner searches this key.
bool is_searched(const config::Key& key) {
  if (key.section == "parallel")
    return !key.name.starts_with("overlap.") && (!key.strategies.empty() || key.name == "strategy" ||
                                                 key.name == "data" || key.name == "zero_stage" || is_of_stages(key));
  const std::string path = key.path();
  return path == "train.micro_batch" || path.starts_with("train.recompute") || path == "offload.optimizer" ||
         path == "offload.gpu_fraction" || path == "offload.resident";
}

/// Marks the keys given by --free as not set, so that the planner searches over them.
void free_keys(config::Config& config, std::vector<std::string> free) {
  if (std::ranges::count(free, "all") > 0) free = {"parallel", "train.micro_batch", "train.recompute"};
  for (const std::string& word : free) {
    bool searched = false;
    for (const config::Key& key : config::keys()) {
      // A file that --emit wrote sets both keys of recomputation.
      const bool both = word == "train.recompute" && key.path() == "train.recompute_layers";
      if (!is_searched(key) || (key.path() != word && key.section != word && !both)) continue;
      searched = true;
      std::erase_if(config.origins, [&](const auto& given) {
        return given.first == key.path() || given.first.starts_with(key.path() + ".");
      });
      if (key.section != "train") key.set(config, key.initial);
    }
    if (!searched)
      throw Error(
          Code::usage,
          format("--free {}: the planner does not search this; expected parallel.strategy, stages, chunks, data, "
                 "zero_stage or a key of a strategy, train.micro_batch, train.recompute, offload.optimizer, or all",
                 word));
  }
  if (!config::is_given(config, "train.recompute_layers")) config.train.recompute_layers = 0;
}

/// Returns the vocabulary size. The data need not be on the planning machine if data.vocab_size is set.
int64_t vocabulary(const config::Config& config) {
  const config::Data& data = config.data;
  if (data.vocab_size > 0) return data.vocab_size;
  if (data.tokenizer.empty() && data.train.empty() && data.source.empty())
    throw Error(Code::config,
                "data.vocab_size: missing; a plan requires the vocabulary size: set it, or data.tokenizer, or "
                "data.train with token files");
  return data::planned_vocab(config);
}

/// Reads a cluster file or profile to plan for. Throws Code::usage for an empty name.
plan::Cluster cluster_of(const PlanOptions& o, const std::string& file) {
  if (file.empty())
    throw Error(Code::usage,
                "a plan requires a cluster: give --cluster FILE (examples are in configs/clusters) or --profile FILE "
                "(written by `trainer bench all --write-profile FILE`), or set hardware.profile");
  const plan::Cluster cluster = plan::read_cluster(file);
  if (!o.profile.empty() && !cluster.measured)
    throw Error(Code::config,
                format("{}: not a measured profile, as cluster.ranks is missing; use --cluster", o.profile));
  if (!o.profile.empty()) {
    const std::unique_ptr<comm::World> world = comm::solo_world();
    setup::Machine machine = setup::choose_machine(config::defaults(), *world);
    plan::require_own_profile(cluster, machine);
  }
  if (cluster.products.empty() && cluster.efficiency == 1)
    log::warning(
        "{}: device.efficiency is missing: matmuls are assumed to reach the full peak, which no machine does; set it "
        "(published benchmarks of large matmuls reach 0.65 to 0.85)",
        cluster.path);
  return cluster;
}

json header(const plan::Cluster& cluster) {
  return {{"cluster", cluster.name},
          {"measured", cluster.measured},
          {"error_band", {plan::error_band(cluster).least, plan::error_band(cluster).most}}};
}

std::string errors_text(const plan::Cluster& cluster) {
  const auto [least, most] = plan::error_band(cluster);
  return format("error band: steps take {:.2g} to {:.2g} times as long as predicted{}\n", least, most,
                cluster.measured ? ", as observed in runs after a measured profile"
                                 : format("; {} is a data sheet, not calibrated", cluster.path));
}

/// Prints the fastest run on each number of devices.
int compare_devices(const PlanOptions& o, const plan::PlanRequest& request, const plan::Cluster& cluster) {
  if (!o.emit.empty() || o.explain)
    throw Error(Code::usage, format("{} requires a single number in --devices, found {}; give only one",
                                    o.emit.empty() ? "--explain" : "--emit", o.devices.size()));
  const std::vector<plan::ScalingPoint> points = plan::plan_scaling(request, cluster, o.devices);
  const auto first =
      std::ranges::find_if(points, [](const plan::ScalingPoint& point) { return point.run.has_value(); });
  const plan::RunCost run = plan::cost_of(*first->run, cluster);
  const std::string text =
      to_text(points, cluster) +
      format(
          "time: {} steps, {} tokens, without evaluation and checkpoints; efficiency: tokens/s per device, "
          "relative to {} devices\n",
          run.steps, format_count(run.tokens), first->devices) +
      (cluster.price_per_gpu_hour > 0 ? "" : "price: unknown; set cluster.price_per_gpu_hour\n") + errors_text(cluster);
  if (!o.html.empty()) {
    replace_file(o.html, scaling_page(points, cluster, text));
    log::info("wrote {}", o.html);
  }
  if (!o.json) {
    print(text);
    return 0;
  }
  json document = header(cluster), rows = json::array();
  for (const plan::ScalingPoint& point : points)
    rows.push_back(point.run ? json{{"devices", point.devices},
                                    {"efficiency", efficiency(points, point)},
                                    {"run", to_json(*point.run, cluster)}}
                             : json{{"devices", point.devices}, {"problem", point.problem}});
  document["scaling"] = rows;
  print(json_text(document) + "\n");
  return 0;
}

}  // namespace

int plan_command(const PlanOptions& o) {
  if (!o.emit.empty() && o.emit == o.html)
    throw Error(Code::usage, format("--emit and --html both name {}; choose different files", o.emit));
  for (const std::string& file : {o.emit, o.html})  // before a search that may take minutes
    if (!file.empty()) require_replaceable(file);
  std::optional<plan::Cluster> given;
  if (!o.cluster.empty() || !o.profile.empty()) given = cluster_of(o, o.profile.empty() ? o.cluster : o.profile);
  plan::PlanRequest request;
  int64_t ranks = 1;
  const auto free = [&](config::Config& config) {  // before validation: a free key conflicts with nothing
    ranks = config::ranks_of_replica(config);
    free_keys(config, o.free);
  };
  request.config =
      config::load(o.config.file, o.config.sets, reading_models({.files = false, .plans = true, .adjust = free}));
  plan::Cluster cluster = given ? *given : cluster_of(o, request.config.hardware.profile);
  if (o.imbalance != 1 && request.config.model.n_expert == 0)
    throw Error(Code::usage, format("--imbalance {}: the model has no experts; remove it", o.imbalance));
  if (std::isnan(o.imbalance)) throw Error(Code::usage, "--imbalance nan: must be a number from 1 to 1024");
  cluster.imbalance = o.imbalance;
  request.bf16_gradients = std::ranges::count(o.free, "parallel.rs_dtype") > 0;
  request.vocab = vocabulary(request.config);
  request.own.threads = static_cast<int>(std::max<int64_t>(1, request.config.run.threads));
  if (o.devices.size() > 1) return compare_devices(o, request, cluster);
  request.devices = !o.devices.empty() ? o.devices.front()
                    : cluster.measured ? cluster.ranks
                                       : std::max<int64_t>(cluster.devices_per_node, ranks);
  request.shown = static_cast<size_t>(std::max(o.top, o.row));
  const plan::Plan plan = plan::plan_layouts(request, cluster);
  if (plan.runs.empty()) throw Error(Code::plan, plan::why_nothing_fits(plan));
  if (!o.emit.empty()) {
    const auto row = static_cast<size_t>(o.row);
    if (row > plan.runs.size())
      throw Error(Code::usage, format("--row {}: the plan has {}", row, counted(plan.runs.size(), "layout")));
    replace_file(o.emit, plan::emitted(plan.runs[row - 1], cluster));
    log::info("wrote {}", o.emit);
  }
  const auto words = [&](bool explained) {
    std::string text =
        plan::to_text(plan, cluster, static_cast<size_t>(o.top)) + kLegend +
        "the whole run on the fastest layout: " + to_text(plan::cost_of(plan.runs.front(), cluster), cluster) + "\n" +
        errors_text(cluster);
    if (explained) text += plan::explain(plan, cluster, request);
    return text;
  };
  if (!o.html.empty()) {
    replace_file(o.html, plan_page(plan, cluster, static_cast<size_t>(o.top), words(true)));
    log::info("wrote {}", o.html);
  }
  if (o.json) {
    json rows = json::array(), large = json::array();
    for (size_t i = 0; i < std::min<size_t>(plan.runs.size(), static_cast<size_t>(o.top)); ++i)
      rows.push_back(to_json(plan.runs[i], cluster));
    for (const plan::PlannedRun& run : plan.too_large) large.push_back(to_json(run, cluster));
    json document = header(cluster);
    document.update({{"devices", request.devices},
                     {"compute", name_of(plan.compute)},
                     {"memory_limit_bytes", plan.memory_limit},
                     {"enumerated", plan.enumerated},
                     {"priced", plan.priced},
                     {"not_tried", plan.left_out},
                     {"seconds", plan.seconds},
                     {"runs", rows},
                     {"too_large", large}});
    print(json_text(document) + "\n");
    return 0;
  }
  print(words(o.explain));
  return 0;
}

}  // namespace trainer::cli
