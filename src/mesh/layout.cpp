#include "mesh/layout.h"

#include <algorithm>

#include "base/error.h"
#include "comm/bytes.h"

namespace trainer::mesh {
std::string to_string(Placement placement) {
  switch (placement.kind) {
    case Placement::Kind::replicate:
      return "B";
    case Placement::Kind::split:
      return format("S{}", placement.dim);
    case Placement::Kind::partial:
      return "P";
    case Placement::Kind::flat:
      return "flat";
  }
  return "";
}

Layout Layout::with(AxisSet axes, Placement placement) const {
  TRAINER_CHECK(placement.kind != Placement::Kind::split || (placement.dim >= 0 && placement.dim < shape_.dims()),
                "placement {} does not fit a tensor {}", to_string(placement), trainer::to_string(shape_));
  Layout next = *this;
  for (int a = 0; a < mesh_.axes(); ++a)
    if ((axes >> a & 1) != 0 && mesh_.size(a) > 1) next.placements_[static_cast<size_t>(a)] = placement;
  next.check_divides();
  return next;
}

Layout Layout::padded(int dim, int64_t extent) const {
  TRAINER_CHECK(dim >= 0 && dim < shape_.dims() && extent >= shape_[dim], "dim {} of {} cannot be padded to {}", dim,
                trainer::to_string(shape_), extent);
  Layout next = *this;
  next.padded_ = padded_.with(dim, extent);
  next.check_divides();
  return next;
}

Layout Layout::transposed() const {
  TRAINER_CHECK(shape_.dims() == 2, "only matrices can be transposed, not a tensor {}", trainer::to_string(shape_));
  Layout next = *this;
  next.transposed_ = !transposed_;
  return next;
}

void Layout::check_divides() const {
  for (int dim = 0; dim < shape_.dims(); ++dim) {
    const AxisSet axes = this->axes(split(dim));
    const int blocks = mesh_.group_size(axes);
    if (padded_[dim] % blocks != 0)
      throw Error(Code::config,
                  format("dim {} of {} cannot be split evenly over {} ({} ranks): make {} a multiple of {}, or choose "
                         "a different mesh",
                         dim, trainer::to_string(padded_), mesh_.name_of(axes), blocks, padded_[dim], blocks));
  }
}

AxisSet Layout::axes(Placement placement) const {
  AxisSet set = 0;
  for (int a = 0; a < mesh_.axes(); ++a)
    if (on(a) == placement) set |= AxisSet{1} << a;
  return set;
}

Layout::Box Layout::box_of(int rank) const {
  Box box;
  for (int dim = 0; dim < shape_.dims(); ++dim) {
    const AxisSet axes = this->axes(split(dim));
    const int64_t extent = padded_[dim] / mesh_.group_size(axes);
    box.extent[static_cast<size_t>(dim)] = extent;
    box.begin[static_cast<size_t>(dim)] = extent * mesh_.index(rank, axes);
  }
  return box;
}

Shape Layout::box() const {
  Shape shape = padded_;
  for (int dim = 0; dim < shape.dims(); ++dim)
    shape = shape.with(dim, padded_[dim] / mesh_.group_size(axes(split(dim))));
  return transposed_ ? Shape{shape[1], shape[0]} : shape;
}

Shape Layout::local(int rank) const {
  const AxisSet flat = axes(kFlat);
  if (flat == 0) return box();
  return {comm::chunk_of(box().count(), mesh_.group_size(flat), mesh_.index(rank, flat)).count};
}

std::vector<Run> Layout::runs(int rank, const BoxPosition& place, int64_t slice) const {
  const Box box = box_of(rank);
  const int dims = shape_.dims();
  // Strides in memory along each global dim, and extents without padding.
  std::array<int64_t, Shape::kMaxDims> pitch{}, extent{};
  const auto at = [](auto& values, int dim) -> int64_t& { return values[static_cast<size_t>(dim)]; };
  int64_t distance = 1, lines = 1;  // after the loop, `distance` is the size of the local matrix
  for (int i = dims - 1; i >= 0; --i) {
    const int dim = transposed_ ? dims - 1 - i : i;
    at(pitch, dim) = distance;
    distance *= i == dims - 1 && place.pitch != 0 ? place.pitch : box.extent[static_cast<size_t>(dim)];
  }
  for (int dim = 0; dim < dims; ++dim) {
    const auto d = static_cast<size_t>(dim);
    extent[d] = std::clamp<int64_t>(shape_[dim] - box.begin[d], 0, box.extent[d]);
    if (dim < dims - 1) lines *= extent[d];
  }

  std::vector<Run> runs;
  const int64_t length = at(extent, dims - 1), stride = length > 1 ? at(pitch, dims - 1) : 1;
  // Lines are the rows of matrices: those of one index of all dims before the last two.
  const int64_t rows = dims < 2 ? 1 : at(extent, dims - 2), step = dims < 2 ? 0 : at(pitch, dims - 2);
  const AxisSet flat = axes(kFlat);
  const comm::Chunk piece = comm::chunk_of(distance, mesh_.group_size(flat), mesh_.index(rank, flat));
  int64_t first = 0, last = lines;
  if (slice >= 0) {
    TRAINER_CHECK(dims == 3 && slice < shape_[0], "{} has no slice {}", trainer::to_string(shape_), slice);
    first = std::clamp<int64_t>(slice - box.begin[0], 0, extent[0]) * rows;
    last = std::clamp<int64_t>(slice + 1 - box.begin[0], 0, extent[0]) * rows;
  }
  if (flat != 0 && dims >= 2 && !transposed_ && (dims == 2 || padded_ == shape_)) {
    // Only the lines that overlap with the shard.
    first = std::clamp((piece.begin - place.offset - length) / step, first, last);
    last = std::clamp((piece.begin + piece.count - place.offset) / step + 1, first, last);
  }
  const bool apart = length < shape_[-1];  // if not, the runs merge into one unless other parts are between them
  if (length == 0) last = first;
  const bool merges = !apart && step == length && stride == 1;
  if (!merges) runs.reserve(static_cast<size_t>(last - first));
  for (int64_t line = first, count = 0; line < last; line += count) {  // the lines of a matrix
    const int64_t row = line % rows;
    count = std::min(last - line, rows - row);
    int64_t global = box.begin[static_cast<size_t>(dims - 1)], local = place.offset + row * step, weight = shape_[-1];
    if (dims > 1) global += (box.begin[static_cast<size_t>(dims - 2)] + row) * weight;
    int64_t rest = line / rows;
    for (int dim = dims - 3; dim >= 0; --dim) {
      const int64_t index = rest % at(extent, dim);
      rest /= at(extent, dim);
      weight *= shape_[dim + 1];
      global += (box.begin[static_cast<size_t>(dim)] + index) * weight;
      local += index * at(pitch, dim);
    }
    if (merges) {
      append_run(runs, {global, local, count * length, 1});
    } else {  // quickly, since a plan lists millions of lines
      for (int64_t i = 0; i < count; ++i) runs.push_back({global + i * shape_[-1], local + i * step, length, stride});
    }
  }
  return flat == 0 ? runs : clip_runs(runs, piece.begin, piece.count);
}

bool Layout::is_owner(int rank) const {
  TRAINER_CHECK(axes(kPartial) == 0, "no rank owns elements of partial sums: {}", mesh::to_string(*this));
  return mesh_.index(rank, axes(kReplicate)) == 0;
}

Layout::Key Layout::key() const {
  Key key{};
  size_t at = 0;
  key[at++] = transposed_;
  key[at++] = shape_.dims();
  for (int dim = 0; dim < shape_.dims(); ++dim) {
    key[at++] = shape_[dim];
    key[at++] = padded_[dim];
  }
  for (const Placement& placement : placements_)
    key[at++] = static_cast<int64_t>(placement.kind) * Shape::kMaxDims + placement.dim;
  return key;
}

std::string to_string(const Layout& layout) {
  std::string text = trainer::to_string(layout.shape());
  if (layout.extents() != layout.shape()) text += " padded to " + trainer::to_string(layout.extents());
  if (layout.is_transposed()) text += " transposed";
  AxisSet done = layout.axes(kReplicate);
  std::string separator = " ";
  for (int a = 0; a < layout.mesh().axes(); ++a) {
    if ((done >> a & 1) != 0) continue;
    const AxisSet alike = layout.axes(layout.on(a));
    text += separator + to_string(layout.on(a)) + " over " + layout.mesh().name_of(alike);
    separator = ", ";
    done |= alike;
  }
  return text;
}

}  // namespace trainer::mesh
