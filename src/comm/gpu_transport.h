#pragma once
// How tensors in GPU memory get from rank to rank: by NCCL where every rank of a host has a GPU of its own, else
// through the host, on the transport that carries host data.
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/world.h"

namespace trainer::comm {

/// "NCCL 2.28.9" when it is compiled in, for --version.
std::optional<std::string> nccl_version();

/// The GPU of a rank; none: it computes on a CPU.
struct GpuPlace {
  std::string host, bus_id;
};
/// "ranks 0, 2 and 3 share GPU 0000:01:00.0 of host a" for the first such GPU, "rank 1 has no GPU"; empty when each
/// rank has its own.
std::string obstacle_to_nccl(const std::vector<std::optional<GpuPlace>>& ranks);

struct GpuTransport {
  bool nccl = false;
  std::string reason;  // for the log; empty when there is nothing to choose: one rank, or no GPU
};
/// `asked` is parallel.transport. Collective; all ranks choose alike. Throws Code::plan for "nccl" where it cannot be,
/// Code::usage where it is not compiled in.
GpuTransport choose_gpu_transport(World& world, const device::Device& device, std::string_view asked);

/// The world for tensors of `device` as chosen; null: `world` itself. Collective.
std::unique_ptr<World> gpu_world(World& world, device::Device& device, const GpuTransport& chosen);

}  // namespace trainer::comm
