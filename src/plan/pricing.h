#pragma once
// Pricing: the time and memory of one layout of a run, from its own program (plan/program.h, plan/price.h).
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/config.h"
#include "device/isa.h"
#include "plan/cluster.h"
#include "plan/price.h"
#include "setup/machine.h"

namespace trainer::plan {

/// The choices that a layout leaves open: how much is recomputed, whether replicas split the optimizer state
/// (ZeRO-1), and where that state is stored; with the additive model's estimates of time and memory.
struct Choice {
  config::Recompute recompute = config::Recompute::none;
  int64_t recompute_layers = 0;
  int64_t zero_stage = 0;
  config::OffloadOptimizer offload = config::OffloadOptimizer::none;
  double seconds = 0, bytes = 0;
  void set(config::Config& config) const;
};
/// True if the planner may choose how many layers are recomputed: with several stages, all or none.
bool may_choose_layers(const config::Config& config);
/// Returns all choices that the given keys leave open; they recompute all layers alike.
std::vector<Choice> choices(const config::Config& config, const Cluster& cluster);

/// A layout of a run with its predicted time and memory.
struct PlannedRun {
  config::Config config;         // with every key of the layout set
  std::string strategy, layout;  // the name in the configuration; "tensor 4, data 2"
  StepTime time;
  RunPlan plan;
  bool fits = false;
  bool whole = false;           // recorded with all layers: memory and time are exact
  double estimate = 0;          // seconds, by the additive model
  std::vector<Choice> choices;  // to be priced, in this order
  double tokens_per_s = 0, mfu = 0;
  std::optional<Error> obstacle;  // why its step cannot be built
};

/// Returns the run of a configuration, to be priced; keys of other strategies are dropped.
PlannedRun planned(config::Config config);
/// Returns a text that is the same for equivalent layouts, whatever their strategy and axes: the sharding spec
/// (adjacent axes that split the same dimensions are merged), the number of replicas, the micro-batch, the number
/// of layers whose matrices stay gathered, and the stages, with the layers of chunks if these are given.
std::string identity(config::Config config);
/// Returns other strategies that express the same layout: "axonn-4d grid 4 x 1 x 1".
std::vector<std::string> other_names(const config::Config& config);
/// Removes and returns about `most` of the first runs, at least two of each family and of each number of stages.
std::vector<PlannedRun> take_first(std::vector<PlannedRun>& runs, size_t most);
/// Removes and returns at most `most` runs that may be faster than the best priced run, assuming that the additive
/// model overestimates a run by no more than it did the priced runs of the family.
std::vector<PlannedRun> take_promising(std::vector<PlannedRun>& runs, const std::vector<PlannedRun>& priced,
                                       size_t most);
/// Returns the share of a rank's memory that a run may use: a GPU's context and libraries use the rest.
inline double memory_share(const Cluster& cluster) { return cluster.cpu ? 1 : 0.92; }
/// Returns the type that a run would compute in on this cluster.
DType choose_compute(const config::Config& config, const Cluster& cluster);

/// The layers that are recorded: all of them, or only a few of a deep model with identical layers. In the latter case
/// the rest is extrapolated, since each further layer adds the same cost, except to a peak of memory that is in
/// another part of the step.
enum class Depth : uint8_t { few, all };

/// True if all layers cost the same and none keeps its gathered matrices unless all do, so that a few are enough.
bool has_equal_layers(const config::Config& config);
/// a + factor · (b − a): memory, bytes and parameters; else b.
RunPlan on_line(const RunPlan& a, const RunPlan& b, double factor);
/// Sets the payload of scalar exchanges to that of a deeper model: their time is not linear in it.
void deepen_scalars(Program& less, Program& more, double factor);

/// The ranks of this machine, for clusters that were measured on it.
struct OwnRanks {
  device::Isa isa = device::detect_isa();
  int threads = 1;
};

/// Pricer records and prices runs of one model on one cluster. It is thread-safe.
class Pricer {
 public:
  /// `config` sets the compute type and the memory limit of a rank. The cluster must outlive the
  /// pricer.
  Pricer(const Cluster& cluster, const config::Config& config, int64_t vocab, int64_t ranks, const OwnRanks& own = {});

  /// Fills in time, memory and bytes of run.config, whose layout must be legal. Those of several stages are the memory
  /// and the bytes of the stage that needs most memory; chooses parallel.stage_layers unless they are given.
  void price(PlannedRun& run, Depth depth = Depth::few) const;
  /// Prices the choices of a run in order and keeps the fastest that fits, or the smallest if none does.
  void price_choices(PlannedRun& run, Depth depth = Depth::few) const;

  /// Makes a run that fits with recomputed layers recompute only as many as it needs to fit, if may_choose_layers() and
  /// that is faster. With Depth::few, time and memory are interpolated between no recomputed layer and those of the
  /// run.
  void recompute_less(PlannedRun& run, Depth depth) const;

  DType compute() const { return machine_.compute; }
  /// Returns the memory limit in bytes per rank.
  double memory_limit() const { return static_cast<double>(machine_.memory_limit); }

  /// Fills in the memory of each stage of a run.
  void add_stage_totals(PlannedRun& run) const;

 private:
  /// Fills in the time and the plan of several stages, some of which are recorded.
  void price_stages(PlannedRun& run, Depth depth) const;
  /// Returns the program of a stage's first rank.
  StepProgram record(const config::Config& config, int64_t stage) const;
  /// Returns a plan's bytes on the device.
  int64_t on_device(const RunPlan& plan) const;
  /// Fills in what follows from a run's time and memory.
  void conclude(PlannedRun& run) const;
  /// Prices an interleaved update with the device share that minimises its time, and with as much of the state
  /// resident on the device as fits if that is faster.
  void price_interleaved(PlannedRun& run, Depth depth) const;

  const Cluster& cluster_;
  const int64_t vocab_;
  const Machine machine_;
};

/// Prices one configuration with all keys of its layout (config resolved for its ranks).
PlannedRun price_config(const config::Config& config, int64_t vocab, const Cluster& cluster);

}  // namespace trainer::plan
