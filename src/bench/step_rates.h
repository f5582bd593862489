#pragma once
// Rates of operators in training steps, where each operator reads the output of a previous one.
#include "comm/world.h"
#include "config/config.h"
#include "plan/cluster.h"

namespace trainer::bench {

/// Runs steps of small models of each family independently on every rank, on all ranks at once. Fills in
/// cluster.operators and, relative to cluster.products and cluster.attentions, the shares reached in steps (in_step).
/// CPU only: calls are timed without waiting for a GPU. Collective; every rank gets the same result.
void measure_in_steps(plan::Cluster& cluster, comm::World& world, device::Device& device, DType compute);

}  // namespace trainer::bench
