#pragma once
// Rates of operators in training steps, in which each reads the output of a previous one.
#include "comm/world.h"
#include "config/config.h"
#include "plan/cluster.h"

namespace trainer::bench {

/// Runs steps of small models of each family on every rank on its own and on all at once. Fills in cluster.operators
/// and, relative to cluster.products and cluster.attentions, the shares reached in steps (in_step). Requires a CPU,
/// since calls are timed without waiting for a GPU. Collective; returns the same on all ranks.
void measure_in_steps(plan::Cluster& cluster, comm::World& world, device::Device& device, DType compute);

}  // namespace trainer::bench
