#pragma once
// The planner: which strategy, layout, micro-batch, recomputation and ZeRO stage make a step fast on a machine.
//
//   1. enumerate   replicas x micro-batch x layouts of every strategy whose rules hold (config/layouts.h). Keys
//                  that the configuration gives are constraints; the others are searched.
//   2. estimate    each by the additive model (plan/layer_costs.h), with the least costly choice of recomputation, ZeRO
//                  stage and offload that fits by it; for layouts by tags its search finds them
//   3. price       the most promising: the trainer's own program, recorded on a dry device, with the choices in the
//                  order of their estimates (plan/pricing.h)
//   4. vary        the fastest of each strategy: other places of its ranks, matrices that stay gathered
//   5. refine      the fastest layouts by tags move on to faster neighbours
//   6. rank        by the time of a step
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
  std::vector<PlannedRun> runs;       // that fit, fastest first
  std::vector<PlannedRun> too_large;  // that do not fit, the smallest first
  int64_t enumerated = 0, priced = 0;
  double seconds = 0;  // that planning took
  DType compute = DType::f32;
  double memory_limit = 0;  // bytes of a rank
};

/// Plans. Throws Code::config when no layout of this many devices fits the model, with the rule that the nearest
/// breaks, and when the cluster file lacks a required table. A plan in which nothing fits has no runs.
Plan plan_layouts(const PlanRequest& request, const Cluster& cluster);

/// Says why nothing fits: the smallest layout, its largest category of memory, and how much is missing.
std::string why_nothing_fits(const Plan& plan);

}  // namespace trainer::plan
