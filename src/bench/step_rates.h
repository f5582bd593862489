#pragma once
// What operators reach in training steps, where each reads what another has written.
#include "comm/world.h"
#include "config/config.h"
#include "plan/cluster.h"

namespace trainer::bench {

/// Runs steps of small models, of each family, on every rank by itself and on all at once. Fills in cluster.operators,
/// and cluster.in_step from what cluster.products says of the same products. The cores must be the device's: calls are
/// timed without waiting for a GPU. All ranks call and get the same.
void measure_in_steps(plan::Cluster& cluster, comm::World& world, device::Device& device, DType compute);

}  // namespace trainer::bench
