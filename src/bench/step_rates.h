#pragma once
// Rates of operators in training steps, in which each operator reads the output of an earlier one.
#include "comm/world.h"
#include "plan/cluster.h"

namespace trainer::bench {

/// Runs steps of a small model of each family on all ranks at the same time, on each rank independently. Sets
/// cluster.operators, and the shares of the rates in cluster.products and cluster.attentions that steps reach (in_step,
/// attention_in_step). CPU only: calls are timed without waiting for a GPU. Collective; every rank gets the same
/// result.
void measure_in_steps(plan::Cluster& cluster, comm::World& world, device::Device& device, DType compute);

}  // namespace trainer::bench
