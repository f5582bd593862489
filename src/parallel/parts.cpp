#include "parallel/parts.h"

#include "ops/elementwise.h"

namespace trainer::parallel {

using mesh::Layout;

Parts::Parts(const Ranks& ranks, const std::vector<LinearPart>& parts) : ranks_(ranks) {
  for (const LinearPart& part : parts) {
    if (!kinds_.empty() && kinds_.back().part.width == part.width && kinds_.back().part.heads == part.heads) {
      ++kinds_.back().count;
    } else {
      kinds_.push_back({part, 1});
    }
  }
  TRAINER_CHECK(kinds_.size() <= Moving::kMostKinds, "{} kinds of parts are more than a redistribution supports",
                kinds_.size());
}

AxisSet Parts::cut_axes(const LinearPart& part, const PartSpread& where) const {
  const AxisSet cols = where.spread.cols;
  if (!where.by_heads || part.heads == 0 || part.heads % ranks_.size(cols) == 0) return cols;
  AxisSet sharing = 0;  // the outer axes, along which ranks have different heads
  for (AxisSet axis = 1; axis <= cols && ranks_.size(sharing) < part.heads; axis <<= 1) sharing |= cols & axis;
  TRAINER_CHECK(ranks_.size(sharing) == part.heads,
                "{}: {} heads over {} ranks: the outer mesh axes of these ranks do not multiply to the number of heads",
                part.name, part.heads, ranks_.size(cols));
  return sharing;
}

int64_t Parts::width(const PartSpread& where) const {
  int64_t width = 0;
  for (const Kind& kind : kinds_) width += kind.count * (kind.part.width / ranks_.size(cut_axes(kind.part, where)));
  return width;
}

// A single part without heads is one matrix, however it is split.
bool Parts::moves_as_one(const PartSpread& from, const PartSpread& to) const {
  const bool one = kinds_.size() == 1 && kinds_[0].count == 1 && kinds_[0].part.heads == 0;
  return one || (from.spread.cols == to.spread.cols && from.by_heads == to.by_heads);
}

Layout Parts::joined(Rows rows, const PartSpread& where) const {
  return ranks_.layout(where.spread, rows, width(where) * ranks_.size(where.spread.cols))
      .with(where.partial, mesh::kPartial);
}

Layout Parts::layout(Rows rows, const Kind& kind, const PartSpread& where, bool gradient) const {
  const AxisSet cols = cut_axes(kind.part, where);
  return ranks_.layout({where.spread.rows, cols}, rows, kind.part.width, kind.count)
      .with(where.partial | (gradient ? where.spread.cols & ~cols : AxisSet{0}), mesh::kPartial);
}

bool Parts::needs_move(Rows rows, const PartSpread& from, const PartSpread& to) const {
  return !moves_as_one(from, to) || joined(rows, from) != joined(rows, to);
}

std::optional<RowPieces> Parts::row_pieces(RowPieces::Kind kind, const Exec& ex, Rows rows, const PartSpread& from,
                                           const PartSpread& to, DType dtype) const {
  if (!moves_as_one(from, to)) return {};
  return RowPieces::of(kind, ex, ranks_, joined(rows, from), joined(rows, to), dtype);
}

Parts::Moving Parts::start_move(Exec& ex, Rows rows, const PartSpread& from, const PartSpread& to, Scratch&& x) const {
  if (moves_as_one(from, to)) return Moving(ranks_.start_move(ex, joined(rows, from), joined(rows, to), std::move(x)));
  Moving moving = start_kinds(ex, rows, from, to, x, false);
  moving.source_ = std::move(x);
  return moving;
}

Parts::Moving Parts::start_gradient_move(Exec& ex, Rows rows, const PartSpread& from, const PartSpread& to,
                                         const Tensor& dx) const {
  if (moves_as_one(from, to)) return Moving(ranks_.start_move(ex, joined(rows, from), joined(rows, to), dx));
  return start_kinds(ex, rows, from, to, dx, true);
}

Parts::Moving Parts::start_kinds(Exec& ex, Rows rows, const PartSpread& from, const PartSpread& to, const Tensor& x,
                                 bool gradient) const {
  const int64_t rows_there = ranks_.tile(to.spread, rows, ranks_.size(to.spread.cols)).rows;
  Moving moving(ex.take("parts", {rows_there, width(to)}, x.dtype));
  int64_t col = 0, col_there = 0;
  for (const Kind& kind : kinds_) {
    const Layout here = layout(rows, kind, from, gradient), there = layout(rows, kind, to, gradient);
    Moving::Kind& out = moving.kinds_[moving.count_++];
    const int64_t cols = kind.count * here.box()[2];
    out.first_col = col_there;
    out.cols = kind.count * there.box()[2];
    if (kinds_.size() == 1) {  // a single kind has all columns, so no copy is necessary
      out.transit =
          ranks_.start_move(ex, here, there, x.reshape(here.box()), moving.result_.tensor().reshape(there.box()));
    } else {
      Scratch apart = ex.take("part", here.box(), x.dtype);
      ops::run(ex, ops::Copy{x.col_range(col, cols), apart.tensor().reshape({x.rows(), cols})});
      out.transit = ranks_.start_move(ex, here, there, std::move(apart));
    }
    col += cols;
    col_there += out.cols;
  }
  return moving;
}

Scratch Parts::Moving::finish(Exec& ex) {
  if (!result_) return kinds_[0].transit.finish(ex);
  const Tensor all = result_;
  for (size_t i = 0; i < count_; ++i) {
    const Scratch part = kinds_[i].transit.finish(ex);
    if (!part) continue;  // already received in place
    const Tensor place = all.col_range(kinds_[i].first_col, kinds_[i].cols);
    ops::run(ex, ops::Copy{part.tensor().reshape({all.rows(), kinds_[i].cols}), place});
  }
  source_.reset();
  return std::move(result_);
}

}  // namespace trainer::parallel
