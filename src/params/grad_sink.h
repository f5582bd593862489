#pragma once
// GradSink: where backward passes store weight gradients. The first write of a step overwrites; later ones (further
// micro-batches, the second use of a tied table) add.
//
// Communication starts as early as possible and overlaps with the backward pass of preceding groups:
//   - In each micro-batch, the gradient of a sharded slot is reduce-scattered over the flat axes, to the shards in
//     which the slot is stored. It is in flight while the next gradient is written. At most two are in memory: a
//     third one waits.
//   - In the last micro-batch, partial sums of slots that several ranks of a replica hold are added (Part::sum_over).
//     One group later, the reduction of the group over the replicas starts.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "params/param_store.h"
#include "tensor/host_copy.h"

namespace trainer::params {

/// The destination of the gradient of one use of a slot.
struct GradSlot {
  Tensor tensor;            // accumulator type, local shape of the slot's matrix
  bool accumulate = false;  // add instead of overwriting
};

struct GradNorm {
  double norm = 0;         // of all gradients, before clipping
  std::string bad_tensor;  // first tensor with a non-finite gradient, in declaration order
  bool is_finite() const { return bad_tensor.empty(); }
  /// min(1, max_norm / (norm + 1e-6)); 1 when max_norm is 0.
  double clip_factor(double max_norm) const { return max_norm <= 0 ? 1.0 : std::min(1.0, max_norm / (norm + 1e-6)); }
};

class GradSink {
 public:
  struct Options {
    bool overlap = true;  // false: each reduce-scatter blocks, which shows its cost
    /// The type in which gradients are reduce-scattered; none: the accumulator type.
    std::optional<DType> scatters = {};
  };
  GradSink(ParamStore& store, const Options& options);
  explicit GradSink(ParamStore& store) : GradSink(store, Options()) {}

  /// Allocates block sums, and sums over a replica's ranks; call before the first micro-batch.
  void prepare(device::Device& device);
  void begin_step();
  /// Begins a micro-batch. `last`: the gradients are complete after it.
  void begin_micro(bool last) { last_ = last; }
  /// Marks every gradient as written, after a graph has replayed the device work of a micro-step. Only for micro-steps
  /// that communicate nothing.
  void mark_all_written() { std::fill(written_.begin(), written_.end(), char{1}); }
  /// Returns the destination of a slot's gradient. For a sharded slot that is memory taken from ex.arena, the same for
  /// all writes of a micro-batch; complete() must follow the last one.
  GradSlot slot(Exec& ex, SlotId id);
  /// Starts the reduce-scatter of a sharded slot's gradient, which this micro-batch has written. Does nothing for other
  /// slots.
  void complete(Exec& ex, SlotId id);
  /// Returns the destination of the stored shard's gradient if the caller reduces it over the flat axes itself.
  GradSlot stored_slot(SlotId id);
  /// Takes over such a reduction in flight, and joins it later, like the reduce-scatter of a gradient.
  void join_later(Exec& ex, SlotId id, comm::Ticket&& ticket);
  /// Ends a group: the backward pass of this micro-batch writes no more gradients of it. Waits for the reduce-scatters
  /// of the previous group within its replica.
  void end_group(Exec& ex, int group);
  /// Sets `reduced`, which is called once per step for each group when its gradient is complete, in the order of the
  /// backward pass. At that point, all micro-batches are summed over all ranks and replicas (with ZeRO-1, for the chunk
  /// that this replica owns). The call is made in end_group(), one group after the reduction over the replicas has
  /// started, or later.
  void on_group_reduced(std::function<void(Exec& ex, int group)> reduced) { on_reduced_ = std::move(reduced); }
  /// Ends the backward pass: releases the memory taken from ex.arena.
  void end_micro(Exec& ex);
  /// Joins the reductions over replicas (with ZeRO-1 a replica has the result for the chunk it owns) and returns the
  /// norm over all parameters. Each rank sums squares in f64 over blocks of 65 536 elements, in the part of each
  /// group's flat space that it owns and counts. Blocks, ranks and groups are added in order. The norm is the same on
  /// every rank, and with or without ZeRO-1.
  GradNorm finish(Exec& ex);

 private:
  /// Partial sums of one group over some axes of a replica, side by side.
  struct Sum {
    comm::Communicator* group;
    bool sharded;  // for sharded slots: starts after their reduce-scatter
    std::vector<Region> regions;
    Buffer packed;  // memory for several regions; a single one is reduced in place
    comm::Ticket ticket;
    bool in_place() const { return regions.size() == 1 && regions.front().rows == 1; }
  };
  /// A gradient whose reduce-scatter is in flight.
  struct Flight {
    SlotId slot;
    comm::Ticket ticket;
    Scratch piece;  // receives it if it has a different type; cast, or added if `accumulate`, at the join
    bool accumulate = false;
  };
  static constexpr size_t kMostFlights = 2;
  /// A piece of a group's flat space whose squares this rank counts, and the index of its first block sum.
  struct Piece {
    Region region;
    int64_t block;
  };
  static double sum_of_blocks(const Tensor& blocks, const std::vector<Piece>& pieces);
  Tensor region_of(int group, const Region& region) const;
  void join_oldest_flight(Exec& ex);
  bool has_gradient_in_flight(int group) const {
    return std::ranges::any_of(flights_, [&](const Flight& flight) { return store_.group_of(flight.slot) == group; });
  }
  void start_sums(Exec& ex, bool sharded);
  /// Joins the group's reduction over the replicas, once a step.
  void join_replica_sum(Exec& ex, int group);
  /// Joins the finished group's reduce-scatters within its replica, and starts its reduction over the replicas.
  void start_replica_sum(Exec& ex);
  /// Returns the index in store.params() of the first non-finite gradient on any rank, within owned chunks.
  int64_t find_first_nonfinite(Exec& ex, comm::Communicator* ranks);

  ParamStore& store_;
  std::vector<char> written_;               // by slot
  std::vector<Scratch> outgoing_;           // by slot: a sharded slot's gradient before its last write
  std::vector<Flight> flights_;             // oldest first
  std::vector<std::vector<Sum>> sums_;      // by group
  std::vector<comm::Ticket> replica_sums_;  // by group
  std::vector<char> reduced_;               // by group: its gradient for this step is complete
  std::function<void(Exec&, int)> on_reduced_;
  int finished_ = -1;                       // the group that waits for start_replica_sum()
  int completed_ = -1;                      // the previously completed group
  std::vector<std::vector<Piece>> pieces_;  // by group
  Buffer strided_;                          // packs a piece whose rows are not contiguous
  Buffer blocks_;                           // [block sums of this rank] f64
  Buffer squares_;                          // [ranks, groups] f64
  Buffer bad_;                              // [1] f64
  HostCopy on_host_;                        // copy of one of the above
  std::vector<double> own_squares_;         // [groups], of this rank
  const Options options_;
  bool last_ = false;
};

}  // namespace trainer::params
