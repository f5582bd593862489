#pragma once
// GradSink: where backward passes put weight gradients. The first write of a step overwrites, later ones (further
// micro-batches, the second use of a tied table) add.
//
// What has to be communicated starts as soon as it can and is waited for one group later, so that it runs under the
// backward pass of the groups before it:
//   each micro-batch:      the gradient of a spread slot goes back to where the slot is stored (reduce-scatter over the
//                          flat axes, reduction to the root);
//   the last micro-batch:  partial sums of slots that several ranks of a replica hold are added (Part::sum_over),
//                          and then the group's sum over the replicas starts.
#include <algorithm>
#include <string>
#include <vector>

#include "params/param_store.h"
#include "tensor/host_copy.h"

namespace trainer::params {

struct GradSlot {
  Tensor tensor;            // accumulator type, local shape of the slot's matrix
  bool accumulate = false;  // add instead of overwriting
};

struct GradNorm {
  double norm = 0;         // of all gradients, before clipping
  std::string bad_tensor;  // first tensor with a non-finite gradient, in declaration order
  bool finite() const { return bad_tensor.empty(); }
  /// min(1, max_norm / (norm + 1e-6)); 1 when max_norm is 0.
  double clip(double max_norm) const { return max_norm <= 0 ? 1.0 : std::min(1.0, max_norm / (norm + 1e-6)); }
};

class GradSink {
 public:
  explicit GradSink(ParamStore& store);

  /// Takes the memory of block sums and of sums over a replica's ranks; before the first micro-batch.
  void prepare(device::Device& device);
  void begin_step();
  /// `last`: the gradients are complete after this micro-batch.
  void begin_micro(bool last) { last_ = last; }
  /// Instead of a micro-step: its device work was repeated by a graph, and every gradient is written. Of steps in which
  /// nothing is communicated.
  void micro_step_repeated() { std::fill(written_.begin(), written_.end(), char{1}); }
  /// Where to put a slot's gradient. Of a spread slot it is memory taken from ex.arena, the same until ready().
  GradSlot slot(Exec& ex, SlotId id);
  /// This micro-batch's gradient of a spread slot is whole: starts sending it home. Nothing to do for other slots.
  void ready(Exec& ex, SlotId id);
  /// The backward pass of this micro-batch writes no more gradients of the group. Waits for what the group before
  /// has sent within its replica.
  void group_done(Exec& ex, int group);
  /// The backward pass is over: memory taken from ex.arena is given back.
  void end_micro(Exec& ex);
  /// Joins the sums over replicas (with ZeRO-1 a replica has the sum of the chunk it owns) and returns the norm over
  /// all parameters: 65 536-element block sums in f64 over what each rank owns and counts of each group's flat space,
  /// added in order of blocks, of ranks and of groups. The same on every rank, and with or without ZeRO-1.
  GradNorm finish(Exec& ex);

 private:
  /// Partial sums of one group over some axes of a replica, side by side.
  struct Sum {
    comm::Communicator* group;
    bool spread;  // of spread slots: once their gradients are home
    std::vector<Region> regions;
    Buffer packed;
    comm::Ticket ticket;
  };
  /// A piece of a group's flat space whose squares are counted here, and its first block sum.
  struct Piece {
    Region region;
    int64_t block;
  };
  static double sum_of_blocks(const Tensor& blocks, const std::vector<Piece>& pieces);
  Tensor region_of(int group, const Region& region) const;
  void start_sums(Exec& ex, bool spread);
  /// Joins what the finished group has sent within its replica, and starts its sum over the replicas.
  void complete(Exec& ex);
  /// Index in store.params() of the first non-finite gradient in owned chunks, of all ranks.
  int64_t first_bad(Exec& ex, comm::Communicator* ranks);

  ParamStore& store_;
  std::vector<char> written_;               // by slot
  std::vector<Scratch> outgoing_;           // by slot: a spread slot's gradient before ready()
  std::vector<comm::Ticket> scatters_;      // of the group being written
  std::vector<comm::Ticket> leaving_;       // of the finished group
  std::vector<std::vector<Sum>> sums_;      // by group
  std::vector<comm::Ticket> replica_sums_;  // by group
  int finished_ = -1;                       // the group that waits for complete()
  std::vector<std::vector<Piece>> pieces_;  // by group
  Buffer strided_;                          // a piece whose rows are apart, packed
  Buffer blocks_;                           // [block sums of this rank] f64
  Buffer squares_;                          // [ranks, groups] f64
  Buffer bad_;                              // [1] f64
  HostCopy on_host_;                        // of one of the above
  std::vector<double> own_squares_;         // [groups], of this rank
  bool last_ = false;
};

}  // namespace trainer::params
