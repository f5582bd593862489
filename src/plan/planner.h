#pragma once
// The planner finds which strategy, layout, micro-batch, recomputation and ZeRO stage make a step fastest on a machine.
//
//   1. enumerate   stages x replicas x micro-batch x layouts that the rules of each strategy allow (config/layouts.h).
//                  Keys set in the configuration are constraints; the others are searched.
//   2. estimate    each with the additive model (plan/layer_costs.h), using the cheapest recomputation, ZeRO stage and
//                  offload that fit according to the model; sharding specs come from a search over the model
//   3. price       the most promising by simulating the trainer's own program, recorded on a dry device, with the
//                  choices in the order of their estimates (plan/pricing.h)
//   4. vary        the fastest of each strategy: other placements of its ranks, matrices that stay gathered, chunks
//   5. refine      the fastest layouts as sharding specs by moving to faster neighbours
//                  (Plan::left_out lists what steps 2 to 5 did not try)
//   6. confirm     the fastest, which are shown, by recording them with all layers, so that memory and the number of
//                  recomputed layers, which step 3 interpolates, are exact
#include <string>
#include <vector>

#include "config/config.h"
#include "plan/pricing.h"

namespace trainer::plan {

struct PlanRequest {
  config::Config config;  // resolved, but not for a number of ranks
  int64_t vocab = 0;
  int64_t devices = 1;
  OwnRanks own = {};
  int threads = 2;  // that plan
  size_t most_priced = 48;
  size_t shown = 10;            // the first of Plan::runs, which are recorded with all layers
  bool bf16_gradients = false;  // also tries parallel.rs_dtype = "bf16", which rounds weight gradients
};

struct Plan {
  std::vector<PlannedRun> runs;       // runs that fit, fastest first
  std::vector<PlannedRun> too_large;  // runs that do not fit, smallest first
  int64_t enumerated = 0, priced = 0;
  std::vector<std::string> left_out;   // parts of the search space that were not tried, one phrase for each limit
  bool spares_bf16_gradients = false;  // the fastest reduce-scatters weight gradients in fp32, and bf16 was not tried
  double seconds = 0;                  // duration of planning
  DType compute = DType::f32;
  double memory_limit = 0;  // bytes per rank
};

/// Plans a run. Throws Code::config when no layout of this many devices fits the model, naming the rule that the
/// nearest layout violates, and when the cluster file lacks a required table. A plan in which nothing fits has no runs.
Plan plan_layouts(const PlanRequest& request, const Cluster& cluster);

}  // namespace trainer::plan
