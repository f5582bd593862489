#pragma once
// Speed of the collectives among all ranks of a world, for `trainer bench collectives`.
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "comm/world.h"
#include "tensor/buffer.h"

namespace trainer::bench {

struct CollectiveRate {
  CommOp op = CommOp::all_reduce;  // send: every rank except the last sends to the next one, all at once
  int64_t bytes = 0;               // fp32 payload, as comm/bytes.h counts it
  double microseconds = 0;         // on the slowest rank, from start to join; median of the repeats
  double bus_gbps = 0;             // 10⁹ bytes per second that each rank sends on average: wire bytes / ranks / time
  std::optional<double> mpi_microseconds;  // MPI_Allreduce, to compare with an all_reduce under MPI
};

/// Measures every operation on memory of `device` at every payload (rounded down to a multiple of 4 · ranks bytes, at
/// least one element per rank). Collective; every rank gets the same results. Throws Code::usage if there is only one
/// rank.
std::vector<CollectiveRate> bench_collectives(comm::World& world, device::Device& device,
                                              std::span<const int64_t> payloads, int repeats);

/// CollectiveTimer times single operations on fp32 tensors. All ranks of the world make the same calls; disjoint groups
/// of ranks run at the same time.
class CollectiveTimer {
 public:
  /// Allocates memory for operations of up to `n` elements.
  CollectiveTimer(comm::World& world, device::Device& device, int64_t n);
  /// Returns the slowest rank's seconds per operation: the median of `repeats` runs after `warm_up` uncounted ones.
  double seconds(comm::Communicator& ranks, CommOp op, int64_t n, int repeats, int warm_up = 1);
  /// Starts one operation; the caller joins its ticket.
  comm::Ticket start(comm::Communicator& ranks, CommOp op, int64_t n);
  /// Returns the slowest rank's seconds for an action that all ranks begin together: the median over the repeats.
  double slowest(const std::function<void()>& action, int repeats, int warm_up = 1);
  /// Returns the median over the repeats of the slowest rank's time.
  double slowest_median(std::vector<double> times);
  Exec& exec() { return ex_; }

 private:
  comm::World& world_;
  Arena arena_;
  Meter meter_;
  Exec ex_;
  Buffer in_, out_;
};

}  // namespace trainer::bench
