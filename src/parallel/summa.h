#pragma once
// SUMMA (van de Geijn & Watts 1997): products of matrices that are cut in q × q blocks over a square of ranks. Block
// (i, j) is on rank (i, j). In q steps, blocks of two of the three matrices travel along lines of ranks, and the third
// stays where it is:
//
//   product     along a row of ranks          along a column of ranks       stays    elements in messages of a rank
//   C = A·B     blocks of A are broadcast     blocks of B are broadcast     C        MK/q + KN/q
//   C = A·Bᵀ    blocks of C are added up      blocks of B are broadcast     A        MN/q + NK/q
//   C = Aᵀ·B    blocks of A are broadcast     blocks of C are added up      B        KM/q + MN/q
//
// Derivatives of each are two of the three: the set is closed. A block is broadcast one step before it is used, and
// added up while the next is computed. So either runs under a product.
#include <array>

#include "comm/communicator.h"
#include "parallel/parts.h"
#include "parallel/weights.h"

namespace trainer::parallel {

/// Panels are the blocks of one operand along a line of ranks, broadcast one after the other. A rank uses its own block
/// in place.
class Panels {
 public:
  /// Starts the first broadcast. `own`: this rank's block, packed, in place until the last step. `overlap` false: each
  /// broadcast is waited for at once.
  Panels(Exec& ex, comm::Communicator& line, const Tensor& own, const char* tag, bool overlap);
  int64_t steps() const { return line_.size(); }
  /// Starts the broadcast of the block after the next one, into the memory of the block before. Call it for all
  /// operands of a step, then next() for each.
  void prefetch(Exec& ex);
  /// Returns the next block, from place 0 on; waits for it.
  const Tensor& next(Exec& ex);

 private:
  void start(Exec& ex, int64_t step);
  struct Slot {
    Scratch memory;
    Tensor panel;
    comm::Ticket ticket;  // declared last: memory outlives what uses it
  };
  comm::Communicator& line_;
  const Tensor own_;
  const char* tag_;
  const bool overlap_;
  int64_t step_ = 0;
  std::array<Slot, 2> slots_;
};

/// Sums are the blocks of a result along a line of ranks. The ranks' partial sums of block l are reduced to rank l,
/// which owns it.
class Sums {
 public:
  /// `result`: this rank's own block, packed. Blocks are formed and added in its type.
  Sums(comm::Communicator& line, const Tensor& result, const char* tag, bool overlap);
  /// Returns the memory for this rank's partial sum of the next block: the result itself for its own block.
  Tensor next(Exec& ex);
  /// Whether the next block is this rank's own.
  bool is_own() const { return step_ == line_.rank(); }
  /// Starts the reduction of the block that was written.
  void start_sum(Exec& ex);
  /// Waits for the reductions in flight.
  void finish(Exec& ex);
  /// Hands the reductions in flight to the sink, as the gradient of what is stored of a slot.
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

// The products consume their panels and do not wait for the sums.

/// c = A·B; a along the row of ranks, b along the column. c [m, n] of the accumulator type. With `d`, also D = Aᵀ·x, d
/// along the column, from one broadcast of A; `accumulate`: added to what D is.
void summa_ab(Exec& ex, Panels a, Panels b, const Tensor& c, const Tensor& x = {}, Sums* d = nullptr,
              bool accumulate = false);
/// C = a·Bᵀ; b along the column of ranks, c along the row.
void summa_abt(Exec& ex, const Tensor& a, Panels b, Sums& c);
/// C = Aᵀ·b; a along the row of ranks, c along the column. `accumulate`: added to what C is.
void summa_atb(Exec& ex, Panels a, const Tensor& b, Sums& c, bool accumulate = false);

/// SummaLinear is the linear of a square of ranks. All matrices are in blocks, rows over the axes that cut rows,
/// columns over those that cut columns or the contraction. Where columns are cut, Y stays where it is and W is [in,
/// out]; where the contraction is, X stays and W is [out, in].
class SummaLinear final : public Linear {
 public:
  SummaLinear(const Ranks& ranks, ParamStore& store, int group, const LinearSpec& spec,
              const sharding::LinearSharding& sharding);

  Scratch forward(Exec& ex, Rows rows, const Tensor& x, const ForwardFusion& fusion) override;
  Scratch backward(Exec& ex, Rows rows, const Tensor& dy, const Tensor& x, const BackwardFusion& fusion,
                   GradSink& grads) override;

 private:
  PartSpread columns() const { return {.spread = {row_, col_}, .by_heads = true}; }
  /// The ranks of this rank's row, and of its column.
  comm::Communicator& row_line() const { return ranks_.along(col_); }
  comm::Communicator& col_line() const { return ranks_.along(row_); }
  Panels along_row(Exec& ex, const Tensor& own, const char* tag) const {
    return {ex, row_line(), own, tag, ranks_.overlap()};
  }
  Panels weight_panels(Exec& ex) const;

  const Ranks ranks_;
  const AxisSet row_, col_;
  const bool input_stays_;
  const Parts parts_;
  const Weights weights_;
};

}  // namespace trainer::parallel
