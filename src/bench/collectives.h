#pragma once
// Speed of the collectives among all ranks of a world, for `trainer bench collectives`.
#include <optional>
#include <span>
#include <vector>

#include "comm/world.h"

namespace trainer::bench {

struct CollectiveRate {
  CommOp op = CommOp::all_reduce;
  int64_t bytes = 0;        // payload, as comm/bytes.h counts it, in fp32
  double microseconds = 0;  // of the slowest rank from start to join, median of the repeats
  double bus_gbps = 0;      // 10⁹ bytes a second that each rank sends on average: wire bytes / ranks / time
  std::optional<double> mpi_microseconds;  // all_reduce under MPI: MPI_Allreduce, in turn with ours
};

/// Every operation on memory of `device` at every payload (rounded down to a multiple of 4 · ranks bytes, at least one
/// element per rank). All ranks call and get the same results; at least two ranks (Code::usage).
std::vector<CollectiveRate> bench_collectives(comm::World& world, device::Device& device,
                                              std::span<const int64_t> payloads, int repeats);

}  // namespace trainer::bench
