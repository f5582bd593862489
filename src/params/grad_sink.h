#pragma once
// GradSink: the destination of weight gradients in backward passes. The first write in a step overwrites; later writes
// (further micro-batches, the second use of a tied table) accumulate.
//
// Communication starts as early as possible and overlaps with the backward pass of preceding groups:
//   - In each micro-batch, the gradient of a sharded slot is reduce-scattered over the flat axes, to the shards in
//     which the slot is stored. The reduce-scatter overlaps with the computation of the next gradient. At most two are
//     in flight: a third one waits.
//   - In the last micro-batch, partial sums that several ranks of a replica hold are all-reduced (SlotPart::sum_over).
//   One
//     group later, the group's reduction over the replicas starts.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "ops/squared_norm.h"
#include "params/param_store.h"
#include "tensor/host_copy.h"

namespace trainer::params {

/// The destination of a slot's gradient, for one use of the slot.
struct GradSlot {
  Tensor tensor;            // accumulator type, local shape of the slot's matrix
  bool accumulate = false;  // add to the tensor instead of overwriting it
};

struct GradNorm {
  double norm = 0;         // norm of all gradients, before clipping
  std::string bad_tensor;  // the first tensor, by group and position in it, with a non-finite gradient
  bool is_finite() const { return bad_tensor.empty(); }
  /// Returns min(1, max_norm / (norm + 1e-6)); 1 if max_norm is 0.
  double clip_factor(double max_norm) const { return max_norm <= 0 ? 1.0 : std::min(1.0, max_norm / (norm + 1e-6)); }
};

class GradSink {
 public:
  struct Options {
    bool overlap = true;  // false: each reduce-scatter blocks, which shows its cost
    /// The type in which gradients are reduce-scattered; the accumulator type if empty.
    std::optional<DType> scatters = {};
    /// Axes along which each group is on one rank: its squares are added along them first, so that the norm has the
    /// bits that it would have if all groups were on that rank.
    mesh::AxisSet apart = 0;
  };
  GradSink(ParamStore& store, const Options& options);
  explicit GradSink(ParamStore& store) : GradSink(store, Options()) {}

  /// Allocates memory for block sums and for reductions within a replica; call before the first micro-batch.
  void prepare(device::Device& device);
  void begin_step();
  /// Begins a micro-batch. `last`: the last one of the step, after which gradients are complete.
  void begin_micro(bool last) { last_ = last; }
  /// Marks every gradient as written, after a graph has replayed a micro-step's device work, in the memory that the
  /// recorded micro-step placed gradients in. Only for micro-steps without communication.
  void mark_all_written();
  /// Returns the destination of a slot's gradient. For a sharded slot it is memory taken from ex.arena, the same for
  /// all writes in a micro-batch; complete() must follow the last write.
  GradSlot slot(Exec& ex, SlotId id);
  /// Starts the reduce-scatter of a sharded slot's gradient, after its last write in this micro-batch. Does nothing for
  /// other slots.
  void complete(Exec& ex, SlotId id);
  /// Returns the destination of the stored shard's gradient, for callers that reduce it over the flat axes themselves.
  GradSlot stored_slot(Exec& ex, SlotId id);
  /// Takes over such a caller's reduction in flight, and joins it later, like the reduce-scatter of complete().
  void join_later(Exec& ex, SlotId id, comm::Ticket&& ticket);
  /// Ends a group: this micro-batch's backward pass will write no more gradients of the group. Waits for the previous
  /// group's reduce-scatters within the replica. With one replica, a CPU also sums the squares of complete gradients
  /// for finish(): in the last micro-batch, they must not change after that. A group without slots has nothing to end.
  void end_group(Exec& ex, int group);
  /// Adds the gradient of a slot that another rank holds, too, to its own: each rank sends its gradient on the link
  /// `to` and receives the other's on `from`. finish() does so; then it starts the reduction of the slot's group over
  /// the replicas. Call before prepare().
  void add_other_rank(SlotId slot, comm::Communicator& to, comm::Communicator& from) { shared_ = {slot, &to, &from}; }
  /// Sets `reduced`, which is called once per step for each group, in the order of the backward pass, when the group's
  /// gradient is complete: summed over all micro-batches, ranks and replicas (with ZeRO-1, for the chunk that this
  /// replica owns). It is called by end_group(), one group after the group's reduction over the replicas has started,
  /// or later.
  void on_group_reduced(std::function<void(Exec& ex, int group)> reduced) { on_reduced_ = std::move(reduced); }
  /// Ends the micro-batch: waits for reduce-scatters and releases the memory taken from ex.arena.
  void end_micro(Exec& ex);
  /// Joins the reductions over the replicas (with ZeRO-1 a replica has the result for its own chunk) and returns the
  /// norm over all parameters. Each rank sums squares in f64 over blocks of 65 536 elements, in the part of each
  /// group's flat buffer that it owns and counts. Blocks and groups are added in order, and ranks along one axis of the
  /// mesh after the other, those of Options::apart and then the innermost first; ranks without a group add 0. So the
  /// norm is the same on every rank, with or without ZeRO-1.
  GradNorm finish(Exec& ex);

 private:
  /// A group's gradient in a step. A phase includes the work of all phases before it.
  enum class Phase : uint8_t {
    untouched,  // not written yet
    placed,     // has memory
    ending,     // this micro-batch's backward pass has ended it; reductions within the replica may be in flight
    reducing,   // summed over micro-batches and the replica's ranks; the reduction over the replicas is in flight
    reduced,    // complete
    summed,     // its ranges are in norms_, or their block sums are computed
  };
  /// Partial sums over some axes of a replica, packed side by side.
  struct Sum {
    comm::Communicator* group;
    bool sharded;  // true: a sum over sharded slots, which starts after their reduce-scatter
    std::vector<Region> regions;
    Buffer packed;  // a copy of the regions, if there are several; a single region is reduced in place
    comm::Ticket ticket;
    bool in_place() const { return regions.size() == 1 && regions.front().rows == 1; }
  };
  /// A part of a group's flat buffer whose squares this rank sums, and the index of its first block sum.
  struct NormRange {
    Region region;
    int64_t block;
  };
  struct GroupState {
    int id = 0;
    Phase phase = Phase::untouched;
    std::vector<Sum> sums;
    std::vector<NormRange> ranges;
    comm::Ticket over_replicas;  // open only in phase `reducing`
  };
  struct SlotState {
    bool written = false;  // in this step
    Scratch outgoing;      // a sharded slot's gradient before its last write in a micro-batch
  };
  /// A gradient whose reduce-scatter is in flight.
  struct Flight {
    SlotId slot;
    comm::Ticket ticket;
    Scratch piece;  // receives the shard if its type differs; the join casts it, and adds it if `accumulate`
    bool accumulate = false;
  };
  static constexpr size_t kMostFlights = 2;

  SlotState& at(SlotId id) { return slots_[static_cast<size_t>(id)]; }
  /// Returns the first group in this phase; null: none.
  GroupState* group_in(Phase phase) {
    const auto found = std::ranges::find(groups_, phase, &GroupState::phase);
    return found == groups_.end() ? nullptr : &*found;
  }
  /// Begins a write to a slot's stored gradient; before the group's first write of a step, gives it memory
  /// (ParamStore::place_gradient). Returns true if the slot has been written in this step.
  bool begin_write(Exec& ex, SlotId id);
  /// Adds the group's ranges to norms_; a CPU computes their block sums immediately.
  void sum_group(Exec& ex, GroupState& group);
  /// Computes the block sums of the vectors in norms_, and empties it.
  void sum_squares(Exec& ex);
  const Group& buffers(const GroupState& group) const { return store_.groups()[static_cast<size_t>(group.id)]; }
  Tensor region_of(const GroupState& group, const Region& region) const;
  void join_oldest_flight(Exec& ex);
  bool has_gradient_in_flight(const GroupState& group) const {
    return std::ranges::any_of(flights_, [&](const Flight& each) { return store_.group_of(each.slot) == group.id; });
  }
  void start_sums(Exec& ex, GroupState& group, bool sharded);
  /// Copies the regions of a sum to its packed copy, or back.
  void copy_regions(Exec& ex, const GroupState& group, const Sum& sum, bool back);
  /// Joins the reductions within the replica of the group that is ending, if any. In the last micro-batch, also starts
  /// its reduction over the replicas.
  void end_reductions(Exec& ex);
  /// Adds the other rank's part of a shared gradient.
  void add_other(Exec& ex);
  /// Starts the reduction over the replicas of a group whose gradient is complete on this replica.
  void start_replica_sum(Exec& ex, GroupState& group);
  /// Brings a group to phase `reduced`: joins its reduction over the replicas.
  void join_replica_sum(Exec& ex, GroupState& group);
  /// Returns the first tensor, by group and position in it, with a non-finite gradient on any rank, within owned
  /// chunks; empty if there is none.
  std::string find_first_nonfinite(Exec& ex);

  ParamStore& store_;
  std::vector<SlotState> slots_;
  std::vector<GroupState> groups_;  // by id
  std::vector<Flight> flights_;     // oldest first
  std::function<void(Exec&, int)> on_reduced_;
  std::vector<ops::SquaredNorm> norms_;     // to be computed by sum_squares()
  Buffer strided_;                          // scratch to pack a range whose rows are not contiguous
  Buffer blocks_;                           // [block sums of this rank] f64
  std::vector<comm::Communicator*> ranks_;  // along each axis with several ranks, in the order of finish()
  Buffer squares_;                          // [ranks of the longest axis, groups] f64
  HostCopy on_host_;                        // copy of one of the above
  std::vector<double> own_squares_;         // [groups], of this rank
  struct Shared {
    SlotId slot = -1;
    comm::Communicator *to = nullptr, *from = nullptr;
  };
  Shared shared_;  // the slot of a gradient that another rank has a part of; -1: none
  Buffer other_;   // that part
  const Options options_;
  bool last_ = false;
};

}  // namespace trainer::params
