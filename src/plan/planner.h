#pragma once
// The planner finds which strategy, layout, micro-batch, recomputation and ZeRO stage make a step fastest on a machine.
//
//   1. enumerate   replicas x micro-batch x layouts of every strategy whose rules hold (config/layouts.h). Keys
//                  that the configuration gives are constraints; the others are searched.
//   2. estimate    each, by the additive model (plan/layer_costs.h), with the cheapest recomputation, ZeRO stage and
//                  offload that the model says fit; layouts of sharding specs come from a search over that model
//   3. price       the most promising: the trainer's own program, recorded on a dry device, with the choices in the
//                  order of their estimates (plan/pricing.h)
//   4. vary        the fastest of each strategy: other placements of its ranks, matrices that stay gathered
//   5. refine      the fastest sharding specs move on to faster neighbours
//   6. rank        by step time
#include <string>
#include <vector>

#include "config/config.h"
#include "plan/pricing.h"

namespace trainer::plan {

struct PlanRequest {
  config::Config config;  // resolved, not for a world
  int64_t vocab = 0;
  int64_t devices = 1;
  int threads = 2;
  size_t most_priced = 48;
};

struct Plan {
  std::vector<PlannedRun> runs;       // runs that fit, fastest first
  std::vector<PlannedRun> too_large;  // runs that do not fit, smallest first
  int64_t enumerated = 0, priced = 0;
  double seconds = 0;  // that planning took
  DType compute = DType::f32;
  double memory_limit = 0;  // bytes per rank
};

/// Plans a run. Throws Code::config when no layout of this many devices fits the model, with the rule that the nearest
/// breaks, and when the cluster file lacks a required table. A plan in which nothing fits has no runs.
Plan plan_layouts(const PlanRequest& request, const Cluster& cluster);

/// Explains why nothing fits: the smallest layout, its largest category of memory, and how much is missing.
std::string why_nothing_fits(const Plan& plan);

}  // namespace trainer::plan
