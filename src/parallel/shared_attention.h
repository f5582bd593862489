#pragma once
// Attention over sequences that ranks share. A sequence is 2c segments of L tokens; rank k of c has segments k and
// 2c − 1 − k, so that all ranks see equally many pairs of a query and an earlier key. Its rows are ordered by half
// (early, late), sequence and token (RowOrder), so that a half of all sequences is one operand.
//
// Keys and values are sent as rows k ‖ v of some heads. Gradients of keys and values are summed over ranks in the
// accumulator type, always in the same order.
#include "parallel/attention_core.h"

namespace trainer::parallel {

/// Common parts of both exchanges.
class SharedAttention : public AttentionCore {
 public:
  SharedAttention(const Ranks& ranks, const sharding::Layer& layer, const LayerSpec& spec);

 protected:
  /// Returns the number of a segment of rank `rank`.
  int64_t segment(int64_t rank, int64_t half) const { return half == 0 ? rank : 2 * ranks_ - 1 - rank; }
  comm::Communicator& group() const { return ranks().along(context()); }
  /// Returns one half of a rank's rows.
  static Tensor half_of(const Tensor& rows, int64_t half) {
    return rows.row_range(half * rows.rows() / 2, rows.rows() / 2);
  }
  /// Returns the operation on the queries of one half, without keys and results.
  ops::AttentionForward queries_of(const ops::AttentionForward& all, int64_t half) const;
  /// Copies keys and values, columns [begin, begin + width) of each, to rows [n, 2·width] of a message.
  void pack(Exec& ex, const Heads& x, int64_t begin, int64_t width, const Tensor& message) const;
  /// Writes summed gradients [n, 2·width] of keys and values to their columns of q ‖ k ‖ v.
  void store(Exec& ex, const Tensor& sums, int64_t begin, const Tensor& dqkv) const;
  /// Joins the ticket immediately if overlap is off.
  comm::Ticket started(Exec& ex, comm::Ticket ticket) const;
  /// Joins a ticket that is still open.
  static void finish(Exec& ex, comm::Ticket& ticket);

  const int64_t ranks_, rank_;  // that share sequences
};

/// Gathers keys and values before attention to them, a few heads at a time: the next heads' gather overlaps with the
/// attention of these. The context has
/// the bits of a single rank if L is a multiple of the kernels' block of queries, and with a window of that of keys.
/// In layers with a window, ranks send each other only the segments that they see.
class GatheredAttention final : public SharedAttention {
 public:
  GatheredAttention(const Ranks& ranks, const sharding::Layer& layer, const LayerSpec& spec);
  void forward(Exec& ex, const Batch& batch, const Heads& x, Saved& saved) override;
  Scratch backward(Exec& ex, const Batch& batch, const Tensor& dcontext, const Heads& x, const Saved& saved) override;

 private:
  /// Keys and values on their way to this rank, or sums of their gradients on the way back.
  struct InFlight {
    Scratch received;
    comm::Ticket ticket;
  };
  /// The call of one half in one step, without the results.
  struct Call {
    ops::AttentionForward op;
    int64_t first_row;              // first key, in natural order
    int64_t query_col, query_cols;  // columns of this step's query heads
  };
  /// Sets the segments and messages for a number of sequences and a length of segments.
  void plan(int64_t sequences, int64_t length);
  bool sees(int64_t rank, int64_t segment) const;
  Call call(const ops::AttentionForward& all, const Tensor& keys, int64_t step, int64_t half) const;
  Tensor lse_of(const Saved& saved, int64_t step, int64_t half) const;
  /// Returns a segment's rows of all sequences, [sequences, L·cols], of rows in natural order.
  Tensor segment_of(const Tensor& natural, int64_t segment) const;
  InFlight send(Exec& ex, const Heads& x, int64_t step);
  /// Returns the keys and values of the segments that this rank holds, in natural order.
  Scratch receive(Exec& ex, InFlight sent);
  InFlight start_sums(Exec& ex, Scratch sums);
  void finish_sums(Exec& ex, InFlight sent, int64_t step, const Tensor& dqkv);
  comm::PeerCounts counts(bool back) const;

  const int64_t window_, heads_, step_heads_, steps_;  // key heads of this rank, and per step
  int64_t sequences_ = 0, length_ = 0, reach_ = 0;     // reach: earlier segments that a segment sees
  std::vector<int64_t> held_;                          // segments, ascending
  std::vector<int64_t> arriving_, sent_;  // segments in the order of their messages; halves in that of those to others
  std::vector<int64_t> send_counts_, receive_counts_;  // elements by rank
  int64_t wire_ = 0, longest_ = 0;
};

/// Passes keys and values from rank to rank, each hop overlapped with attention to the block before. Partial results
/// are merged in the accumulator type.
class RingAttention final : public SharedAttention {
 public:
  using SharedAttention::SharedAttention;
  void forward(Exec& ex, const Batch& batch, const Heads& x, Saved& saved) override;
  Scratch backward(Exec& ex, const Batch& batch, const Tensor& dcontext, const Heads& x, const Saved& saved) override;

 private:
  /// Calls attend(op, query half, key half) for the pairs of halves of which queries see any key of rank `from`.
  template <typename F>
  void each_call(const ops::AttentionForward& all, const Heads& block, int64_t from, F&& attend) const;
  comm::Ticket pass(Exec& ex, const Tensor& from, const Tensor& to) const;
};

}  // namespace trainer::parallel
