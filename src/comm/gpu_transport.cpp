#include "comm/gpu_transport.h"

#include <unistd.h>

#include <algorithm>
#include <climits>

#include "base/join.h"
#include "comm/nccl/nccl_world.h"

namespace trainer::comm {

namespace {

/// Returns the GPU of every rank, in rank order. Collective. The numbers of GPUs do not identify them: a batch system
/// may give each process one GPU, which is GPU 0 there.
std::vector<std::optional<GpuAddress>> gather_gpus(World& world, const std::optional<device::cuda::Facts>& gpu) {
  char host[HOST_NAME_MAX + 1] = {};
  gethostname(host, HOST_NAME_MAX);
  std::vector<std::optional<GpuAddress>> gpus;
  for (const std::string& text :
       world.control().gather(gpu ? format("{}\n{}\n{}", host, gpu->pci_bus_id, gpu->uuid) : "")) {
    const size_t end = text.find('\n'), second = text.find('\n', end + 1);
    gpus.push_back(text.empty() ? std::nullopt
                                : std::optional(GpuAddress{text.substr(0, end), text.substr(end + 1, second - end - 1),
                                                           text.substr(second + 1)}));
  }
  return gpus;
}

/// Returns why the first rank without NCCL has none; empty: all ranks have it. Hosts may have different libraries.
/// Collective.
std::string missing_nccl(World& world) {
  const std::vector<std::string> ranks = world.control().gather(nccl::version().missing);
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    if (!ranks[rank].empty()) return format("rank {}: {}", rank, ranks[rank]);
  return {};
}

}  // namespace

std::optional<std::string> nccl_version() {
  const nccl::Version version = nccl::version();
  return version.missing.empty() ? std::optional(version.name) : std::nullopt;
}

std::string obstacle_to_nccl(const std::vector<std::optional<GpuAddress>>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank]) return format("rank {} has no GPU", rank);
    std::vector<std::string> sharers;
    for (size_t other = 0; other < ranks.size(); ++other)
      if (ranks[other] && ranks[other]->host == ranks[rank]->host && ranks[other]->bus_id == ranks[rank]->bus_id)
        sharers.push_back(std::to_string(other));
    if (sharers.size() == 1) continue;
    const std::string last = sharers.back();
    sharers.pop_back();
    return format("ranks {} and {} share GPU {} of host {}", fmt::join(sharers, ", "), last, ranks[rank]->bus_id,
                  ranks[rank]->host);
  }
  return {};
}

int ranks_on_gpu(World& world, const std::optional<device::cuda::Facts>& gpu) {
  if (world.transport() == "dry") return 1;
  const auto gpus = gather_gpus(world, gpu);
  return gpu ? static_cast<int>(std::ranges::count(gpus, gpus[static_cast<size_t>(world.rank())])) : 1;
}

GpuTransport choose_gpu_transport(World& world, const device::Device& device, std::optional<bool> nccl) {
  if (world.size() == 1) return {};
  const bool gpu = device.kind() == device::DeviceKind::cuda;
  const auto gpus = gather_gpus(world, gpu ? std::optional(device.gpu()) : std::nullopt);
  const bool any = std::ranges::any_of(gpus, [](const auto& place) { return place.has_value(); });
  const std::string obstacle = world.transport() == "dry" ? "" : obstacle_to_nccl(gpus);
  if (nccl == true) {
    if (const std::string missing = missing_nccl(world); !missing.empty())
      throw Error(Code::usage, missing).on(Scope::all_ranks);
    if (!obstacle.empty())
      throw Error(Code::plan, format("parallel.transport = \"nccl\": {}; NCCL requires one GPU per rank; start fewer "
                                     "ranks, or set parallel.transport = \"mpi\", which copies through the host",
                                     obstacle))
          .on(Scope::all_ranks);
    return {true, format("{}, as requested", *nccl_version())};
  }
  if (!any) return {};
  const auto by_host = [&](const std::string& why) -> GpuTransport {
    return {false, format("through the host ({}): {}", world.transport(), why)};
  };
  if (nccl == false) return by_host("as requested");
  if (world.transport() == "threads") return by_host("ranks are threads");
  if (!obstacle.empty()) return by_host(obstacle);
  if (const std::string missing = missing_nccl(world); !missing.empty()) return by_host(missing);
  return {true, format("{}: every rank has its own GPU", *nccl_version())};
}

std::unique_ptr<World> gpu_world(World& world, device::Device& device, const GpuTransport& chosen) {
  return chosen.nccl ? nccl::make_world(world, device) : nullptr;
}

}  // namespace trainer::comm
