#pragma once
// Transport of tensors in GPU memory. NCCL sends them if every rank has its own GPU; otherwise they are copied through
// the host, on the transport of host data.
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/world.h"

namespace trainer::comm {

/// Returns "NCCL 2.28.9" if it is compiled in, for --version.
std::optional<std::string> nccl_version();

/// The GPU of a rank; empty if the rank computes on a CPU.
struct GpuPlace {
  std::string host, bus_id;
};
/// Returns why NCCL cannot run: "ranks 0, 2 and 3 share GPU 0000:01:00.0 of host a", or "rank 1 has no GPU". Names the
/// first such GPU. Empty when each rank has its own GPU.
std::string obstacle_to_nccl(const std::vector<std::optional<GpuPlace>>& ranks);

struct GpuTransport {
  bool nccl = false;
  std::string reason;  // for the log; empty if there is no choice: one rank, or no GPU
};
/// Chooses the transport according to `asked`, the value of parallel.transport. Collective; all ranks make the same
/// choice. In a dry world every rank is assumed to have its own GPU. Throws Code::plan for "nccl" if NCCL cannot run,
/// Code::usage if it is not compiled in.
GpuTransport choose_gpu_transport(World& world, const device::Device& device, std::string_view asked);

/// Makes the chosen world for tensors of `device`; null: `world` itself. Collective.
std::unique_ptr<World> gpu_world(World& world, device::Device& device, const GpuTransport& chosen);
/// Makes a world that represents one with NCCL over `dry`: on the dry device, the communicators that NCCL will make are
/// counted as "nccl". `lanes` is parallel.lanes.
std::unique_ptr<World> dry_nccl_world(World& dry, device::Device& device, int lanes);

}  // namespace trainer::comm
