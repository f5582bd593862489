#include "mesh/redistribute.h"

#include "base/error.h"

namespace trainer::mesh {
namespace {

using Kind = Placement::Kind;

/// `rows` pieces of `width` bytes, as many apart in memory as the pitches say.
void copy_rows(Exec& ex, const std::byte* from, int64_t from_pitch, std::byte* to, int64_t to_pitch, int64_t rows,
               int64_t width) {
  const OpTimer timer(ex.meter, OpKind::elementwise, {0, 2.0 * static_cast<double>(rows * width)});
  ex.device.copy_rows(to, to_pitch, from, from_pitch, rows, width);
}

void fill_zeros(Exec& ex, const Tensor& tensor) {
  const OpTimer timer(ex.meter, OpKind::elementwise, {0, static_cast<double>(tensor.bytes())});
  ex.device.clear(tensor.data, tensor.bytes());
}

/// A tensor cut into `pieces` along one dim: [outer, pieces, inner] bytes.
struct Cut {
  int64_t outer = 1, pieces = 1, inner = 1;
  Cut(const Shape& whole, int dim, int group, DType dtype) : pieces(group), inner(size_of(dtype)) {
    for (int d = 0; d < dim; ++d) outer *= whole[d];
    for (int d = dim; d < whole.dims(); ++d) inner *= whole[d];
    inner /= pieces;
  }
  bool contiguous() const { return outer == 1; }  // every piece is
};

/// One step of a route, on one rank. `in` is what it starts from; `owned` its handle, or empty when it is not ours.
class Mover {
 public:
  Mover(Exec& ex, comm::Communicator& comm, const Step& step, const Layout& before, const Layout& after, int rank)
      : ex_(ex), comm_(comm), step_(step), before_(before), after_(after), rank_(rank) {}

  Scratch run(const Tensor& in, Scratch owned) {
    in_ = in;
    owned_ = std::move(owned);
    if (!step_.op) return step_.to == kPartial ? fill_up() : keep_part();
    switch (*step_.op) {
      case CommOp::all_gather:
        return all_gather();
      case CommOp::reduce_scatter:
        return reduce_scatter();
      case CommOp::all_to_all:
        return all_to_all();
      case CommOp::all_reduce: {
        Scratch sum = writable();
        comm_.all_reduce(ex_, sum).join(ex_);
        return sum;
      }
      case CommOp::broadcast: {
        Scratch all = first() ? writable() : take();
        comm_.broadcast(ex_, all, 0).join(ex_);
        return all;
      }
      case CommOp::reduce: {
        if (first()) {
          Scratch sum = writable();
          comm_.reduce(ex_, sum, 0).join(ex_);
          return sum;
        }
        comm_.reduce(ex_, in_, 0).join(ex_);
        return take();
      }
      default:
        break;
    }
    TRAINER_CHECK(false, "no step does {}", name_of(*step_.op));
    return {};
  }

 private:
  bool first() const { return comm_.rank() == 0; }
  Scratch take(Shape shape) const { return ex_.take("redistribute", shape, in_.dtype); }
  Scratch take() const { return take(after_.local(rank_)); }
  /// The input as memory that may be overwritten.
  Scratch writable() {
    if (owned_) return std::move(owned_);
    Scratch copy = take(in_.shape);
    copy_rows(ex_, in_.data, 0, copy.tensor().data, 0, 1, in_.bytes());
    return copy;
  }
  /// How the layout that has the whole extent of `placement`'s dim is cut along it.
  Cut cut(const Layout& whole, Placement placement) const {
    const int dim = whole.is_transposed() ? 1 - placement.dim : placement.dim;
    return {whole.box(), dim, step_.group, in_.dtype};
  }
  /// [rows, cols, width] bytes → [cols, rows, width].
  void exchange(const Tensor& from, const Tensor& to, int64_t rows, int64_t cols, int64_t width) {
    for (int64_t col = 0; col < cols; ++col)
      copy_rows(ex_, at(from, col * width), cols * width, at(to, col * rows * width), width, rows, width);
  }
  static std::byte* at(const Tensor& tensor, int64_t byte) {
    return tensor.data == nullptr ? nullptr : tensor.data + byte;
  }

  Scratch all_gather() {
    if (step_.from == kFlat) {
      Scratch out = take();
      comm_.all_gather(ex_, in_, out).join(ex_);
      return out;
    }
    const Cut whole = cut(after_, step_.from);
    Scratch pieces = take(after_.local(rank_));
    comm_.all_gather(ex_, in_, pieces).join(ex_);
    owned_.reset();
    if (whole.contiguous()) return pieces;
    Scratch out = take();
    exchange(pieces, out, whole.pieces, whole.outer, whole.inner);
    return out;
  }

  Scratch reduce_scatter() {
    Scratch packed;
    if (step_.to.kind == Kind::split) packed = pack(cut(before_, step_.to));
    Scratch out = take();
    comm_.reduce_scatter(ex_, packed ? packed.tensor() : in_, out).join(ex_);
    return out;
  }

  Scratch all_to_all() {
    const Cut received = cut(after_, step_.from);
    Scratch packed = pack(cut(before_, step_.to));
    Scratch pieces = take();
    comm_.all_to_all(ex_, packed ? packed.tensor() : in_, pieces).join(ex_);
    packed.reset();
    owned_.reset();
    if (received.contiguous()) return pieces;
    Scratch out = take();
    exchange(pieces, out, received.pieces, received.outer, received.inner);
    return out;
  }

  /// The pieces of the input one after the other; empty when they lie so already.
  Scratch pack(const Cut& whole) {
    if (whole.contiguous()) return {};
    Scratch packed = take(in_.shape);
    exchange(in_, packed, whole.outer, whole.pieces, whole.inner);
    owned_.reset();
    return packed;
  }

  /// B→S, B→flat, B→root.
  Scratch keep_part() {
    if (step_.to == kRoot) return first() ? writable() : take();
    Scratch out = take();
    if (step_.to == kFlat) {
      copy_rows(ex_, at(in_, comm_.chunk(in_.count()).begin * size_of(in_.dtype)), 0, out.tensor().data, 0, 1,
                out.tensor().bytes());
    } else {
      const Cut whole = cut(before_, step_.to);
      copy_rows(ex_, at(in_, comm_.rank() * whole.inner), whole.pieces * whole.inner, out.tensor().data, whole.inner,
                whole.outer, whole.inner);
    }
    return out;
  }

  /// B→P, root→P, S→P, flat→P: the ranks' parts add up to the tensor.
  Scratch fill_up() {
    const bool whole_here = step_.from == kReplicate || step_.from == kRoot;
    if (whole_here && first()) return writable();
    Scratch out = step_.from == kReplicate && owned_ ? std::move(owned_) : take();
    fill_zeros(ex_, out);
    if (step_.from == kFlat) {
      const int64_t begin = comm_.chunk(out.tensor().count()).begin;
      copy_rows(ex_, in_.data, 0, at(out, begin * size_of(in_.dtype)), 0, 1, in_.bytes());
    } else if (!whole_here) {
      const Cut whole = cut(after_, step_.from);
      copy_rows(ex_, in_.data, whole.inner, at(out, comm_.rank() * whole.inner), whole.pieces * whole.inner,
                whole.outer, whole.inner);
    }
    return out;
  }

  Exec& ex_;
  comm::Communicator& comm_;
  const Step& step_;
  const Layout &before_, &after_;
  int rank_;
  Tensor in_;
  Scratch owned_;
};

Scratch follow(Exec& ex, Mesh& mesh, comm::Lane lane, const Layout& from, const Layout& to, const Tensor& in,
               Scratch owned) {
  TRAINER_CHECK(in.shape == from.local(mesh.rank()) && in.packed(), "{} is not what rank {} stores of {}",
                to_string(in), mesh.rank(), to_string(from));
  Tensor current = in;
  Layout before = from;
  for (const Step& step : mesh.route(from, to).steps) {
    const Layout after = before.with(step.axes, step.to);
    Mover mover(ex, mesh.along(step.axes, lane), step, before, after, mesh.rank());
    owned = mover.run(current, std::move(owned));
    current = owned;
    before = after;
  }
  return owned;
}

}  // namespace

Scratch redistribute(Exec& ex, Mesh& mesh, comm::Lane lane, const Layout& from, const Layout& to, Scratch&& in) {
  if (from == to) return std::move(in);
  const Tensor tensor = in;
  return follow(ex, mesh, lane, from, to, tensor, std::move(in));
}

Scratch redistribute(Exec& ex, Mesh& mesh, comm::Lane lane, const Layout& from, const Layout& to, const Tensor& in) {
  return from == to ? Scratch() : follow(ex, mesh, lane, from, to, in, {});
}

}  // namespace trainer::mesh
