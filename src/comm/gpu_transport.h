#pragma once
// Transport of tensors in GPU memory. NCCL sends them if every rank has its own GPU; otherwise they are copied through
// the host and use the transport for host data.
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/world.h"

namespace trainer::comm {

/// Returns "NCCL 2.28.9" if NCCL is compiled in, for --version.
std::optional<std::string> nccl_version();

/// The GPU of a rank; empty if the rank computes on a CPU.
struct GpuAddress {
  std::string host, bus_id, uuid = {};
  bool operator==(const GpuAddress&) const = default;
};
/// Returns the number of ranks that share the memory of this rank's GPU, or of its MIG instance, this rank included; 1
/// for a rank that computes on a CPU, and in a dry world, where every rank is assumed to have its own GPU. Collective.
int ranks_on_gpu(World& world, const std::optional<device::cuda::Facts>& gpu);
/// Returns why NCCL cannot run: "ranks 0, 2 and 3 share GPU 0000:01:00.0 of host a", or "rank 1 has no GPU". Reports
/// the first shared GPU. Empty if each rank has its own GPU. MIG instances share a GPU: NCCL goes by the bus ID.
std::string obstacle_to_nccl(const std::vector<std::optional<GpuAddress>>& ranks);

struct GpuTransport {
  bool nccl = false;
  std::string reason;  // for the log; empty if there is no choice: one rank, or no GPU
};
/// Chooses the transport between GPUs. `nccl` is the request of parallel.transport: NCCL, through the host, or empty:
/// choose. Collective; all ranks make the same choice. In a dry world every rank is assumed to have its own GPU. If
/// NCCL is requested, throws Code::plan if it cannot run, Code::usage if it is not compiled in.
GpuTransport choose_gpu_transport(World& world, const device::Device& device, std::optional<bool> nccl);

/// Creates the chosen world for tensors of `device`; null: use `world` itself. Collective.
std::unique_ptr<World> gpu_world(World& world, device::Device& device, const GpuTransport& chosen);
/// Creates a world that represents an NCCL world over `dry`: the memory of the communicators that NCCL will create is
/// counted on the dry device as "nccl". `lanes` is parallel.lanes.
std::unique_ptr<World> dry_nccl_world(World& dry, device::Device& device, int lanes);

}  // namespace trainer::comm
