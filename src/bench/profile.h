#pragma once
// The profile of this machine, or of the ranks of a job: the input to the planner's predictions (plan/cluster.h).
#include "comm/world.h"
#include "config/config.h"
#include "plan/cluster.h"
#include "setup/machine.h"

namespace trainer::bench {

struct ProfileOptions {
  int repeats = 5;
  double product_seconds = 0.02;  // GEMMs that would take longer than this are skipped
  bool steps = true;              // run small models: measure_in_steps() on CPUs, and concurrent communication
  /// Payloads of the collectives in bytes. The whole profile takes about a minute with up to 16 ranks on two cores.
  std::vector<int64_t> payloads = {1 << 10, 16 << 10, 128 << 10, 1 << 20, 8 << 20};
};

/// Measures the peak, memory bandwidth, GEMMs of many shapes in three forms, attention with several head sizes,
/// operators in steps (measure_in_steps()), the host (measure_host()), every collective in groups of adjacent and of
/// distant ranks (all groups of the same kind at once), and how much steps and collectives slow each other down. All
/// ranks measure steps, memory, hosts and collectives at the same time, so that they compete for shared resources; on
/// CPUs, only rank 0 measures GEMMs and attention. Collective; every rank gets the same profile.
plan::Cluster measure_profile(comm::World& world, const config::Config& config, const setup::Machine& machine,
                              const ProfileOptions& options);

/// Returns a rank's share of its host's memory, and of the host's rates for updating optimizer state there: means over
/// the ranks, which measure at the same time (offload/calibrate.h) unless debug.emulate_device sets the rates. Unknown
/// if a rank computes on a CPU and no device is emulated, since that rank's optimizer state is in host memory anyway.
/// Collective; every rank gets the same result.
plan::Host measure_host(comm::World& world, const config::Config& config, const setup::Machine& machine,
                        device::Device& device);

/// The slowdown of compute next to communication, and of communication next to compute: members of plan::Link.
struct Interference {
  double slowdown = 0, progress = 1;
};

/// Derives it from four times in seconds: `compute` and `communication` measured separately, then how long after a
/// common start each of them ended (`computed`, `communicated`). Communication that was still running after compute
/// ended had no competition.
Interference interference(double compute, double communication, double computed, double communicated);

}  // namespace trainer::bench
