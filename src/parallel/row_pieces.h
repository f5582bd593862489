#pragma once
// RowPieces: the collective of a linear in pieces of token rows, so that one piece is communicated while a GEMM
// computes the rows of another.
//
// Each rank's chunk of the collective is a block of rows: with sequence parallelism the rank's own rows, in an
// all-reduce the rows whose sum the ring completes there. A piece is the first or the second half of the rows of every
// chunk (comm::Communicator's windows). So sums have the same order as in one collective over all rows, results are
// received in place. All pieces use one packed copy of the weights; where it would be larger than the panels of a GEMM
// of all rows and not make GEMMs faster, the collective stays whole.
//
//   all_gather → GEMM                    GEMM → reduce_scatter or all_reduce
//   gather    piece 0   piece 1          GEMM      piece 0   piece 1
//   GEMM      own rows  piece 0  piece 1 collective          piece 0  piece 1
//
// A gather starts with the rows that a rank already has. Between two ranks they are half of all rows, so the rest is
// gathered as a single piece.
//
// A GEMM's sums over a row do not depend on the other rows of the call, except that matrix units read k forwards or
// backwards by turns of 32 rows, and that a few rows use other kernels (ops/cpu/gemm.cpp). Pieces therefore begin at
// multiples of 64 rows. Small collectives, and those of GPUs, stay whole.
#include <array>
#include <optional>

#include "parallel/ranks.h"

namespace trainer::parallel {

class RowPieces {
 public:
  enum class Kind : uint8_t { gather, reduction };
  /// Returns the pieces of a move from one layout of a matrix to another. Empty if the move does not consist of one
  /// collective of this kind over equal blocks of rows, if it is too small, or if collectives do not overlap with
  /// compute.
  static std::optional<RowPieces> of(Kind kind, const Exec& ex, const Ranks& ranks, const mesh::Layout& from,
                                     const mesh::Layout& to, DType dtype);

  /// Returns whether a collective over equal blocks of rows of `ranks` ranks is large enough for pieces. `rows` and
  /// `bytes` are those of the matrix before the reduction, or after the gather.
  static bool are_large(int64_t rows, int64_t ranks, int64_t bytes);

  /// Returns the rows of the gathered matrix.
  int64_t gathered_rows() const { return comm_->size() * chunk_rows_; }

  /// Collectives in flight.
  class [[nodiscard]] Flight {
   public:
    void join(Exec& ex) {
      for (comm::Ticket& ticket : tickets_)
        if (ticket.is_open()) ticket.join(ex);
    }

   private:
    friend class RowPieces;
    std::array<comm::Ticket, 2> tickets_;
  };

  /// Starts to gather `own` into `all`.
  Flight start_gather(Exec& ex, const Tensor& own, const Tensor& all) const;
  /// Calls use(rows, first) for all rows of the gathered matrix, in blocks: `first` is the first row's index. Waits for
  /// each piece before its first block.
  template <typename Use>
  void finish_gather(Exec& ex, Flight& flight, const Tensor& own, const Tensor& all, Use use) const {
    use(own, rank_ * chunk_rows_);
    for (size_t p = 0; p < flight.tickets_.size(); ++p) {
      if (!flight.tickets_[p].is_open()) continue;
      flight.tickets_[p].join(ex);
      each_block(p, [&](int64_t chunk, int64_t first, int64_t n) {
        if (chunk != rank_) use(all.row_range(first, n), first);
      });
    }
  }
  /// Takes memory for the reduction of `partial`; none for an all-reduce, which is in place.
  Scratch take_result(Exec& ex, const Tensor& partial) const {
    if (op_ == CommOp::all_reduce) return {};
    return ex.take("redistribute", {chunk_rows_, partial.cols()}, partial.dtype);
  }
  /// Calls compute(first, n) for all rows of `partial`, in blocks, and starts to reduce each piece once it is computed:
  /// into `result`, or in place for an all-reduce.
  template <typename Compute>
  Flight reduce(Exec& ex, const Tensor& partial, const Tensor& result, Compute compute) const {
    Flight flight;
    for (size_t p = 0; p < flight.tickets_.size(); ++p) {
      each_block(p, [&](int64_t, int64_t first, int64_t n) { compute(first, n); });
      flight.tickets_[p] = start_reduction(ex, partial, result, p);
    }
    return flight;
  }

 private:
  RowPieces(CommOp op, comm::Communicator& comm, int64_t chunk_rows);
  /// Calls fn(chunk, first row, rows) for the blocks of a piece.
  template <typename F>
  void each_block(size_t piece, F fn) const {
    for (int64_t chunk = 0; chunk < comm_->size(); ++chunk)
      if (pieces_[piece].count > 0) fn(chunk, chunk * chunk_rows_ + pieces_[piece].begin, pieces_[piece].count);
  }
  comm::Ticket start_reduction(Exec& ex, const Tensor& partial, const Tensor& result, size_t piece) const;

  CommOp op_;
  comm::Communicator* comm_;
  int64_t rank_, chunk_rows_;
  std::array<comm::Chunk, 2> pieces_;  // rows of each chunk; the second is empty if there is a single piece
};

}  // namespace trainer::parallel
