#pragma once
// Activations whose columns are parts side by side on every rank: q ‖ k ‖ v, gate ‖ up; and their redistribution
// between spreads.
//
// As long as columns stay on their ranks, all parts are redistributed as one matrix. When the split of columns changes,
// blocks of the whole matrix would not be blocks of its parts. Then parts of equal width are redistributed together, as
// [rows, parts, width].
#include <array>

#include "parallel/strategy.h"

namespace trainer::parallel {

/// The distribution of parts over ranks. `by_heads`: ranks along spread.cols have whole heads. If there are more ranks
/// than heads of a part, several ranks hold the same head. Each of them then has a partial sum of its gradient, that of
/// its own query heads.
struct PartSpread {
  Spread spread;
  bool by_heads = false;
  AxisSet partial = 0;  // along these axes, ranks hold partial sums of everything
};

class Parts {
 public:
  Parts(const Ranks& ranks, const std::vector<LinearPart>& parts);

  /// Returns the axes that split a part in a spread. They are all of spread.cols, or its outer ones that make as many
  /// groups as there are heads. Ranks along the rest hold the same columns.
  AxisSet cut_axes(const LinearPart& part, const PartSpread& where) const;
  /// Returns the number of a rank's columns of all parts.
  int64_t width(const PartSpread& where) const;

  /// True if a rank has different elements in the two spreads.
  bool needs_move(Rows rows, const PartSpread& from, const PartSpread& to) const;

  /// A redistribution in flight. The first collective of each kind of part runs until finish(), overlapped with
  /// computation in between.
  class [[nodiscard]] Moving {
   public:
    /// Returns x in its new spread; empty when no communication was needed.
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
  /// Starts to redistribute values: ranks along axes that do not split x hold copies of it. `x` stays in place until
  /// finish().
  Moving start_move(Exec& ex, Rows rows, const PartSpread& from, const PartSpread& to, Scratch&& x) const;
  /// Starts to redistribute gradients: ranks along axes that share heads hold partial sums. The caller keeps dx.
  Moving start_gradient_move(Exec& ex, Rows rows, const PartSpread& from, const PartSpread& to, const Tensor& dx) const;

 private:
  /// A group of neighbouring parts of equal width and heads.
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
