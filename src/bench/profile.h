#pragma once
// The profile of this machine, or of the ranks of a job: the input of the planner's predictions (plan/cluster.h).
#include "comm/world.h"
#include "config/config.h"
#include "plan/cluster.h"
#include "setup/machine.h"

namespace trainer::bench {

struct ProfileOptions {
  int repeats = 5;
  double product_seconds = 0.02;  // GEMMs that would take longer are skipped
  bool steps = true;  // measure steps of small models: measure_in_steps() on CPUs, and concurrent communication
  /// Bytes of the collectives. All measurements take about a minute with up to 16 ranks on two cores.
  std::vector<int64_t> payloads = {1 << 10, 16 << 10, 128 << 10, 1 << 20, 8 << 20};
};

/// Measures peak, memory, GEMMs of many shapes in three forms, attention of many heads, measure_in_steps(),
/// measure_host(), every collective in groups of neighbours and of distant ranks, all groups of a kind at the same
/// time, and how steps and collectives slow each other down. Steps, memory, hosts and collectives are measured by all
/// ranks at the same time, so that shared resources are shared; GEMMs and attention on CPUs by rank 0 only. Collective;
/// returns the same profile on all ranks.
plan::Cluster measure_profile(comm::World& world, const config::Config& config, const setup::Machine& machine,
                              const ProfileOptions& options);

/// Returns a rank's share of its host's rates, for updates of the optimizer state there: means over the ranks, which
/// measure at the same time (offload/calibrate.h) unless debug.emulate_device gives the rates. Empty if a rank computes
/// on a CPU without such a device, whose state is in the same memory. Collective; returns the same on all ranks.
plan::Host measure_host(comm::World& world, const config::Config& config, const setup::Machine& machine,
                        device::Device& device);

/// Returns the groups that are measured in a world of `ranks` ranks: the members of this rank's group, for several
/// sizes and distances between the members.
std::vector<std::vector<int>> profiled_groups(int ranks, int rank);

}  // namespace trainer::bench
