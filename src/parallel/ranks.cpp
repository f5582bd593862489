#include "parallel/ranks.h"

#include "ops/elementwise.h"

namespace trainer::parallel {

using mesh::Layout;
using mesh::Transit;

comm::Communicator& Ranks::along(AxisSet axes, comm::Purpose purpose) const {
  TRAINER_CHECK(mesh_ != nullptr, "along() requires a mesh");
  return mesh_->along(axes, purpose);
}

// On the whole mesh, the axes of replicas and stages split rows as well, so that no redistribution uses them.
Layout Ranks::layout(Spread spread, Rows rows, int64_t width, int64_t parts) const {
  const int64_t count = rows.count * size(apart());
  const Shape shape = parts > 0 ? Shape{count, parts, width} : Shape{count, width};
  return Layout(shape_, shape)
      .with(apart() | (rows.cut ? spread.rows : AxisSet{0}), mesh::split(0))
      .with(spread.cols, mesh::split(shape.dims() - 1));
}

Tile Ranks::tile(Spread spread, Rows rows, int64_t width) const {
  const Shape box = layout(spread, rows, width).box();
  return {.first_row = rows.cut ? index(spread.rows) * box[0] : 0,
          .rows = box[0],
          .first_col = index(spread.cols) * box[1],
          .cols = box[1]};
}

Scratch Ranks::move(Exec& ex, Rows rows, int64_t width, Spread from, Spread to, Scratch&& x) const {
  if (from == to) return std::move(x);
  return start_move(ex, layout(from, rows, width), layout(to, rows, width), std::move(x)).finish(ex);
}

const mesh::Step* Ranks::only_step(const Layout& from, const Layout& to) const {
  if (from == to || mesh_ == nullptr) return nullptr;
  const std::vector<mesh::Step>& steps = mesh_->route(from, to).steps;
  return steps.size() == 1 && steps[0].op ? &steps[0] : nullptr;
}

// On a single rank all layouts are equal, so there is nothing to move.
Transit Ranks::start_move(Exec& ex, const Layout& from, const Layout& to, Scratch&& x, const Tensor& out) const {
  if (from == to && !out) return Transit(std::move(x));
  TRAINER_CHECK(mesh_ != nullptr, "redistribution requires a mesh");
  return wait_unless_overlapping(ex,
                                 mesh::start_move(ex, *mesh_, comm::Purpose::critical, from, to, std::move(x), out));
}

Transit Ranks::start_move(Exec& ex, const Layout& from, const Layout& to, const Tensor& x, const Tensor& out) const {
  if (from == to && !out) return {};
  TRAINER_CHECK(mesh_ != nullptr, "redistribution requires a mesh");
  return wait_unless_overlapping(ex, mesh::start_move(ex, *mesh_, comm::Purpose::critical, from, to, x, out));
}

Transit Ranks::start_move_in_place(Exec& ex, const Layout& from, const Layout& to, const Tensor& x) const {
  if (from == to) return {};
  TRAINER_CHECK(mesh_ != nullptr, "redistribution requires a mesh");
  return wait_unless_overlapping(ex, mesh::start_move_in_place(ex, *mesh_, comm::Purpose::critical, from, to, x));
}

Transit Ranks::wait_unless_overlapping(Exec& ex, Transit&& transit) const {
  if (!overlap_) transit.wait(ex);
  return std::move(transit);
}

Scratch cast_to(Exec& ex, Scratch&& x, DType type) {
  if (x.tensor().dtype == type) return std::move(x);
  Scratch y = ex.take("linear.sum", x.tensor().shape, type);
  ops::run(ex, ops::Cast{x, y});
  return y;
}

}  // namespace trainer::parallel
