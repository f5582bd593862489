#include "parallel/row_pieces.h"

// Two halves of a micro-batch in threads of their own, one computing while the other communicates, were no faster.
namespace trainer::parallel {
namespace {

// A piece of fewer bytes takes about as long to start as to send.
constexpr int64_t kSmallestPiece = int64_t{256} << 10;
constexpr int64_t kRowStep = 64;  // pieces begin at multiples of this

}  // namespace

RowPieces::RowPieces(CommOp op, comm::Communicator& comm, int64_t chunk_rows)
    : op_(op), comm_(&comm), rank_(comm.rank()), chunk_rows_(chunk_rows) {
  const bool single = op == CommOp::all_gather && comm.size() == 2;
  const int64_t first = single ? chunk_rows : round_up(divide_up(chunk_rows, int64_t{2}), kRowStep);
  pieces_ = {{{0, first}, {first, chunk_rows - first}}};
}

std::optional<RowPieces> RowPieces::of(Kind kind, const Exec& ex, const Ranks& ranks, const mesh::Layout& from,
                                       const mesh::Layout& to, DType dtype) {
  if (!ranks.overlap() || ex.device.kind() != device::DeviceKind::cpu || from.shape().dims() != 2) return {};
  const mesh::Step* const step = ranks.only_step(from, to);
  if (step == nullptr) return {};
  const CommOp op = *step->op;
  const bool of_rows = kind == Kind::gather
                           ? op == CommOp::all_gather && step->from == mesh::split(0)
                           : op == CommOp::all_reduce || (op == CommOp::reduce_scatter && step->to == mesh::split(0));
  const Shape whole = (kind == Kind::gather ? to : from).box();
  if (!of_rows || !are_large(whole[0], step->group, whole.count() * size_of(dtype))) return {};
  return RowPieces(op, ranks.along(step->axes), whole[0] / step->group);
}

bool RowPieces::are_large(int64_t rows, int64_t ranks, int64_t bytes) {
  return rows % (ranks * kRowStep) == 0 && rows >= 2 * kRowStep * ranks && bytes >= 2 * kSmallestPiece;
}

RowPieces::Flight RowPieces::start_gather(Exec& ex, const Tensor& own, const Tensor& all) const {
  Flight flight;
  for (size_t p = 0; p < pieces_.size(); ++p) {
    const auto [begin, n] = pieces_[p];
    if (n > 0)
      flight.tickets_[p] = comm_->all_gather(ex, own.row_range(begin, n), all, {begin * own.cols(), n * own.cols()});
  }
  return flight;
}

comm::Ticket RowPieces::start_reduction(Exec& ex, const Tensor& partial, const Tensor& result, size_t piece) const {
  const auto [begin, n] = pieces_[piece];
  const comm::Chunk window{begin * partial.cols(), n * partial.cols()};
  if (op_ == CommOp::all_reduce) return comm_->all_reduce(ex, partial, comm::Reduce::sum, window);
  return comm_->reduce_scatter(ex, partial, result.row_range(begin, n), comm::Reduce::sum, window);
}

}  // namespace trainer::parallel
