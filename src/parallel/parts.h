#pragma once
// Activations whose columns are parts side by side on every rank: q ‖ k ‖ v, gate ‖ up; and their moves between
// spreads.
//
// As long as columns stay where they are, all parts move together, as one matrix. When they are to be cut otherwise,
// blocks of the whole matrix would not be blocks of its parts: then each kind of part moves for itself, parts of equal
// width together, as [rows, parts, width].
#include <array>

#include "parallel/strategy.h"

namespace trainer::parallel {

/// Where parts are. `by_heads`: ranks along spread.cols share heads out whole, and where there are more ranks than
/// heads of a part, several of them hold the same one; of gradients, each then has a partial sum, that of its own query
/// heads.
struct PartSpread {
  Spread spread;
  bool by_heads = false;
  AxisSet partial = 0;  // along these axes, ranks hold partial sums of everything
};

class Parts {
 public:
  Parts(const Ranks& ranks, const std::vector<LinearPart>& parts);

  /// The axes that cut a part where it is: all of spread.cols, or the outer ones of them that make as many groups as
  /// there are heads (Code::config when none do). The ranks along the rest hold the same columns.
  AxisSet cut(const LinearPart& part, const PartSpread& where) const;
  /// A rank's columns of all parts.
  int64_t width(const PartSpread& where) const;

  /// Whether a rank has something else in the one spread than in the other.
  bool move(Rows rows, const PartSpread& from, const PartSpread& to) const;

  /// A move under way: collectives run until finish(), each kind's first one under what is done in between.
  class [[nodiscard]] Moving {
   public:
    /// x where it was to go. Empty when nothing moved.
    Scratch finish(Exec& ex);

   private:
    friend class Parts;
    static constexpr size_t kMostKinds = 3;
    struct Kind {
      mesh::Transit transit;
      int64_t first_col = 0, cols = 0;  // of the result
    };
    std::array<Kind, kMostKinds> kinds_;
    size_t count_ = 0;
    Scratch source_, result_;
  };
  /// x, where it is values: copies along axes that do not cut it. `x` stays in place until finish().
  Moving start(Exec& ex, Rows rows, const PartSpread& from, const PartSpread& to, Scratch&& x) const;
  /// Gradients: along axes that share heads, partial sums. The tensor is somebody else's.
  Moving start_back(Exec& ex, Rows rows, const PartSpread& from, const PartSpread& to, const Tensor& dx) const;

 private:
  /// Neighbours of equal width and heads.
  struct Kind {
    LinearPart part;
    int64_t count = 1;
  };
  bool together(const PartSpread& from, const PartSpread& to) const;
  mesh::Layout joined(Rows rows, const PartSpread& where) const;
  mesh::Layout layout(Rows rows, const Kind& kind, const PartSpread& where, bool gradient) const;
  void start_kinds(Exec& ex, Rows rows, const PartSpread& from, const PartSpread& to, const Tensor& x, bool gradient,
                   Moving& moving) const;

  const Ranks ranks_;
  std::vector<Kind> kinds_;
};

}  // namespace trainer::parallel
