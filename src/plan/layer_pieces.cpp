// The time of redistributions next to GEMMs, whole or in pieces of rows, as LayerCosts estimates it.
#include "parallel/row_pieces.h"
#include "parallel/weights.h"
#include "plan/layer_costs.h"

namespace trainer::plan {

std::optional<LayerCosts::Pieces> LayerCosts::pieces(bool gathers, Site site, const LinearSharding& linear,
                                                     const MatrixPlacement& from, const MatrixPlacement& to,
                                                     double elements) {
  if (!cluster_.cpu || !config_.parallel.overlap_all_reduce || from == to || routes(site)) return {};
  const Matrix& matrix = matrix_of(site);
  const double block = matrix.in * matrix.out / ranks(linear.contraction | linear.cols) * element_;
  if (block > static_cast<double>(parallel::Weights::kPanelBytes)) return {};
  const std::vector<RouteShares::Leg> legs = routes_.of(axes_, from, to);
  if (legs.size() != 1) return {};
  const auto& [axes, op, payload] = legs.front();
  const MatrixPlacement &whole = gathers ? to : from, &split = gathers ? from : to;
  const bool blocks_of_rows = (split.rows & axes) == axes;
  if (gathers ? op != CommOp::all_gather || !blocks_of_rows
              : op != CommOp::all_reduce && (op != CommOp::reduce_scatter || !blocks_of_rows))
    return {};
  const DType type = type_of(from);
  const auto rows = static_cast<int64_t>(rows_ / ranks(whole.rows)),
             count = static_cast<int64_t>(elements / ranks(whole.rows | whole.cols));
  if (!parallel::RowPieces::are_large(rows, axes_.ranks(axes), count * size_of(type))) return {};
  return Pieces{axes, collective(axes, op, type, payload * elements / 2)};
}

double LayerCosts::gather_before(Site site, const LinearSharding& linear, const MatrixPlacement& from,
                                 const MatrixPlacement& to, double elements, double gemm) {
  const double whole = move(from, to, elements);
  const std::optional<Pieces> in_two = pieces(true, site, linear, from, to, elements);
  if (!in_two) return whole;
  // The GEMM of the rank's own rows overlaps with the first piece, that of the first piece with the second one. Between
  // two ranks there is a single piece.
  const double share = gemm / ranks(in_two->axes);
  if (ranks(in_two->axes) == 2) return added(in_two->axes, whole, share);
  return added(in_two->axes, in_two->each, share) + added(in_two->axes, in_two->each, (gemm - share) / 2);
}

double LayerCosts::reduce_after(Site site, const LinearSharding& linear, const MatrixPlacement& from,
                                const MatrixPlacement& to, double elements, double gemm, double next) {
  const std::optional<Pieces> in_two = pieces(false, site, linear, from, to, elements);
  if (!in_two) return added(moved(from, to), move(from, to, elements), next);
  return added(in_two->axes, in_two->each, gemm / 2) + added(in_two->axes, in_two->each, next);
}

}  // namespace trainer::plan
