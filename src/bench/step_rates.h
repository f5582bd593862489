#pragma once
// What operators reach in training steps, where each reads what another has written.
#include "comm/world.h"
#include "config/config.h"
#include "plan/cluster.h"

namespace trainer::bench {

/// Runs steps of small models, of each family, on every rank by itself and on all at once. Fills in cluster.operators,
/// and from what cluster.products and cluster.attentions say of the same calls the shares of them (in_step). On a CPU:
/// calls are timed without waiting for a GPU. All ranks call and get the same.
void measure_in_steps(plan::Cluster& cluster, comm::World& world, device::Device& device, DType compute);

}  // namespace trainer::bench
