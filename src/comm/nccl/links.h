#pragma once
// Which operations of a run NCCL executes, which communicators they use, and how much memory a communicator takes.
#include <cstdint>
#include <optional>
#include <utility>

#include "comm/communicator.h"

namespace trainer::comm::nccl {

/// Returns the number of NCCL streams for `lanes` (parallel.lanes, 0: NCCL's default). Channels may share a stream.
inline int streams_of(int lanes) { return lanes > 1 ? 3 : 1; }

/// Returns the identity of an NCCL communicator: the axes of its group, and its stream or link. Empty if the underlying
/// world executes the operations, as it does for a group of one and for control.
inline std::optional<std::pair<uint32_t, int>> link_of(const Group& group, Purpose purpose, int streams) {
  if (group.members.size() == 1 || purpose == Purpose::control) return std::nullopt;
  return std::pair{group.axes, group.link > 0 ? group.queue() : streams == 1 ? 0 : static_cast<int>(purpose)};
}

/// Bytes of GPU memory that a communicator may use with NCCL's defaults: at most 32 channels (maxCTAs in ncclConfig_t),
/// each with connections to both neighbours in a ring. A connection has buffers of 4 MiB (NCCL_BUFFSIZE), 4.7 and 0.5
/// MiB for its three protocols, which are mapped as 10 MiB, and 2 MiB of flags. For four A100 with 24 channels over
/// NVLink, 544 to 688 MiB were reported (github.com/NVIDIA/nccl, issue 964); this estimate is 576 MiB there. GPUs
/// connected by PCIe use fewer channels. Not counted: the communicator of all ranks, which never transfers anything.
/// A link is limited to few channels: its kernels, which may wait for a message during other work, leave room for those
/// of collectives.
inline constexpr int kChannels = 32, kChannelsOfLink = 4;
inline constexpr int64_t bytes_of_communicator(int channels) { return channels * 2 * (int64_t{12} << 20); }
inline constexpr int64_t kBytesOfCommunicator = bytes_of_communicator(kChannels);
inline constexpr int channels_of(const Group& group) { return group.link > 0 ? kChannelsOfLink : kChannels; }

}  // namespace trainer::comm::nccl
