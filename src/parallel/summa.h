#pragma once
// SUMMA (van de Geijn & Watts 1997): GEMMs of matrices that are split into q × q blocks over a square mesh of ranks.
// Block (i, j) is on rank (i, j). In q steps, blocks of two of the three matrices are broadcast or reduced along lines
// of ranks; the third matrix is stationary:
//
//   GEMM        along a row of ranks          along a column of ranks       stays    elements in messages of a rank
//   C = A·B     blocks of A are broadcast     blocks of B are broadcast     C        MK/q + KN/q
//   C = A·Bᵀ    blocks of C are reduced       blocks of B are broadcast     A        MN/q + NK/q
//   C = Aᵀ·B    blocks of A are broadcast     blocks of C are reduced       B        KM/q + MN/q
//
// The backward pass of each form consists of the other forms, so these three are sufficient. A block is broadcast one
// step before it is used, and reduced while the next block is computed, so both overlap with a GEMM.
#include <array>

#include "comm/communicator.h"
#include "parallel/parts.h"
#include "parallel/weights.h"

namespace trainer::parallel {

/// The blocks of one operand along a line of ranks, broadcast one after another. A rank uses its own block in place.
class Panels {
 public:
  /// Starts the first broadcast. `own`: this rank's block, packed; it is read in place, so it must stay valid and
  /// unchanged until the last step. `overlap` false: each broadcast blocks immediately.
  Panels(Exec& ex, comm::Communicator& line, const Tensor& own, const char* tag, bool overlap);
  int64_t steps() const { return line_.size(); }
  /// Starts the broadcast of the block after the one that next() returns, into the memory of the block before it. Call
  /// prefetch() for all operands of a step, then next() for each.
  void prefetch(Exec& ex);
  /// Waits for the next block, starting with block 0, and returns it.
  const Tensor& next(Exec& ex);

 private:
  void start(Exec& ex, int64_t step);
  struct Slot {
    Scratch memory;
    Tensor panel;
    comm::Ticket ticket;  // declared last, so that the memory outlives the broadcast
  };
  comm::Communicator& line_;
  const Tensor own_;
  const char* tag_;
  const bool overlap_;
  int64_t step_ = 0;
  std::array<Slot, 2> slots_;
};

/// The blocks of a result along a line of ranks. The ranks' partial sums of block l are reduced to rank l, which owns
/// it.
class Sums {
 public:
  /// `result`: this rank's own block, packed. Blocks are computed and reduced in its type.
  Sums(comm::Communicator& line, const Tensor& result, const char* tag, bool overlap);
  /// Returns the memory for this rank's partial sum of the next block: the result itself for this rank's own block.
  Tensor next(Exec& ex);
  /// True if the next block is this rank's own.
  bool is_own() const { return step_ == line_.rank(); }
  /// Starts the reduction of the block that next() returned.
  void start_sum(Exec& ex);
  /// Waits for the reductions in flight to complete.
  void finish(Exec& ex);
  /// Passes the reductions in flight to the sink, as the gradient of a slot's stored shard.
  void finish_later(Exec& ex, GradSink& grads, params::SlotId slot);

 private:
  struct Slot {
    Scratch memory;
    comm::Ticket ticket;
  };
  Slot& slot(int64_t step) { return slots_[static_cast<size_t>(step % 2)]; }
  comm::Communicator& line_;
  const Tensor result_;
  const char* tag_;
  const bool overlap_;
  int64_t step_ = 0;
  Tensor part_;
  std::array<Slot, 2> slots_;
};

// These functions consume their panels and do not wait for the reductions.

/// Computes c = A·B, with `a` along the row of ranks and `b` along the column. c [m, n] has the accumulator type. With
/// `d`, also computes D = Aᵀ·x from the same broadcasts of A, with `d` along the column; `accumulate`: D += Aᵀ·x.
void summa_ab(Exec& ex, Panels a, Panels b, const Tensor& c, const Tensor& x = {}, Sums* d = nullptr,
              bool accumulate = false);
/// Computes C = a·Bᵀ, with `b` along the column of ranks and `c` along the row.
void summa_abt(Exec& ex, const Tensor& a, Panels b, Sums& c);
/// Computes C = Aᵀ·b, with `a` along the row of ranks and `c` along the column. `accumulate`: C += Aᵀ·b.
void summa_atb(Exec& ex, Panels a, const Tensor& b, Sums& c, bool accumulate = false);

/// The linear on a square mesh of ranks. All matrices are split into blocks: rows over the axes that split rows,
/// columns over the axes that split columns or the contraction. If columns are split, Y is stationary and W is stored
/// as [in, out]; if the contraction is split, X is stationary and W is stored as [out, in].
class SummaLinear final : public Linear {
 public:
  SummaLinear(const Ranks& ranks, ParamStore& store, int group, const LinearSpec& spec,
              const sharding::LinearSharding& sharding);

  Scratch forward(Exec& ex, Rows rows, const Tensor& x, const ForwardFusion& fusion) override;
  Scratch backward(Exec& ex, Rows rows, const Tensor& dy, const Tensor& x, const BackwardFusion& fusion,
                   GradSink& grads, bool late) override;
  void weight_gradient(Exec& ex, Rows rows, const Tensor& dy, const Tensor& x, GradSink& grads) override;

 private:
  PartSpread columns() const { return {.spread = {row_, col_}, .by_heads = true}; }
  /// Return the communicators along this rank's row and along its column.
  comm::Communicator& row_line() const { return ranks_.along(col_); }
  comm::Communicator& col_line() const { return ranks_.along(row_); }
  Panels along_row(Exec& ex, const Tensor& own, const char* tag) const {
    return {ex, row_line(), own, tag, ranks_.overlap()};
  }
  Panels weight_panels(Exec& ex) const;
  /// Returns the panels of the operand of dW whose columns are split over this rank's row.
  Panels moving_panels(Exec& ex, const Tensor& dy, const Tensor& x) const {
    return input_stays_ ? along_row(ex, dy, "summa.dy") : along_row(ex, x, "summa.x");
  }

  const Ranks ranks_;
  const AxisSet row_, col_;
  const bool input_stays_;
  const Parts parts_;
  const Weights weights_;
};

}  // namespace trainer::parallel
