#pragma once
// Activations whose columns on every rank are parts side by side (q ‖ k ‖ v, gate ‖ up), and their redistribution
// between spreads.
//
// If the split of the columns does not change, all parts are redistributed as one matrix. If it changes, column blocks
// of that matrix would not be blocks of its parts, so parts of equal width are redistributed together, as [rows, parts,
// width].
#include <array>

#include "parallel/row_pieces.h"
#include "parallel/strategy.h"

namespace trainer::parallel {

/// The distribution of parts over ranks. `by_heads`: ranks along spread.cols have whole heads. If there are more ranks
/// than key/value heads, several ranks hold the same head, and each has a partial sum of the head's gradient, from its
/// own query heads.
struct PartSpread {
  Spread spread;
  bool by_heads = false;
  AxisSet partial = 0;  // along these axes, ranks hold partial sums of all parts
};

class Parts {
 public:
  Parts(const Ranks& ranks, const std::vector<LinearPart>& parts);

  /// Returns the axes that split a part: all of spread.cols, or only its outer axes, if these form one group of ranks
  /// per head. Ranks along the remaining axes hold the same columns.
  AxisSet cut_axes(const LinearPart& part, const PartSpread& where) const;
  /// Returns the number of columns that a rank holds, of all parts together.
  int64_t width(const PartSpread& where) const;

  /// True if ranks hold different elements in the two spreads.
  bool needs_move(Rows rows, const PartSpread& from, const PartSpread& to) const;

  /// Returns the pieces of a move, if it can be done in pieces of rows.
  std::optional<RowPieces> row_pieces(RowPieces::Kind kind, const Exec& ex, Rows rows, const PartSpread& from,
                                      const PartSpread& to, DType dtype) const;

  /// A redistribution in flight. The first collective for each kind of part overlaps with the computation before
  /// finish().
  class [[nodiscard]] Moving {
   public:
    /// Returns x in its new spread; empty if no communication was necessary.
    Scratch finish(Exec& ex);

   private:
    friend class Parts;
    explicit Moving(mesh::Transit&& as_one) : count_(1) { kinds_[0].transit = std::move(as_one); }
    explicit Moving(Scratch&& result) : result_(std::move(result)) {}
    static constexpr size_t kMostKinds = 3;
    struct Kind {
      mesh::Transit transit;
      int64_t first_col = 0, cols = 0;  // columns of the result
    };
    std::array<Kind, kMostKinds> kinds_;
    size_t count_ = 0;
    Scratch source_, result_;
  };
  /// Starts to redistribute values: ranks along axes that do not split x hold copies of it.
  Moving start_move(Exec& ex, Rows rows, const PartSpread& from, const PartSpread& to, Scratch&& x) const;
  /// Starts to redistribute gradients: ranks that share heads hold partial sums. `dx` must stay valid until finish().
  Moving start_gradient_move(Exec& ex, Rows rows, const PartSpread& from, const PartSpread& to, const Tensor& dx) const;

 private:
  /// Consecutive parts of equal width and number of heads.
  struct Kind {
    LinearPart part;
    int64_t count = 1;
  };
  bool moves_as_one(const PartSpread& from, const PartSpread& to) const;
  mesh::Layout joined(Rows rows, const PartSpread& where) const;
  mesh::Layout layout(Rows rows, const Kind& kind, const PartSpread& where, bool gradient) const;
  Moving start_kinds(Exec& ex, Rows rows, const PartSpread& from, const PartSpread& to, const Tensor& x,
                     bool gradient) const;

  const Ranks ranks_;
  std::vector<Kind> kinds_;
};

}  // namespace trainer::parallel
