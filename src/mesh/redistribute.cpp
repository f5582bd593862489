#include "mesh/redistribute.h"

#include "base/error.h"

namespace trainer::mesh {
namespace {

using Kind = Placement::Kind;

/// Copies `rows` rows of `width` bytes between memories with the given pitches.
void copy_rows(Exec& ex, const std::byte* from, int64_t from_pitch, std::byte* to, int64_t to_pitch, int64_t rows,
               int64_t width) {
  const OpTimer timer(ex.meter, OpKind::elementwise, {0, 2.0 * static_cast<double>(rows * width)});
  ex.device.copy_rows(to, to_pitch, from, from_pitch, rows, width);
}

void copy_whole(Exec& ex, const Tensor& from, const Tensor& to) {
  copy_rows(ex, from.data, 0, to.data, 0, 1, from.bytes());
}

void fill_zeros(Exec& ex, const Tensor& tensor) {
  const OpTimer timer(ex.meter, OpKind::elementwise, {0, static_cast<double>(tensor.bytes())});
  ex.device.clear(tensor.data, tensor.bytes());
}

std::byte* at(const Tensor& tensor, int64_t byte) { return tensor.data == nullptr ? nullptr : tensor.data + byte; }

/// Transposes [rows, cols, width] bytes to [cols, rows, width], with as few copies as possible.
void exchange(Exec& ex, const Tensor& from, const Tensor& to, int64_t rows, int64_t cols, int64_t width) {
  if (cols <= rows) {
    for (int64_t col = 0; col < cols; ++col)
      copy_rows(ex, at(from, col * width), cols * width, at(to, col * rows * width), width, rows, width);
  } else {
    for (int64_t row = 0; row < rows; ++row)
      copy_rows(ex, at(from, row * cols * width), width, at(to, row * width), rows * width, cols, width);
  }
}

/// A tensor divided into `pieces` along one dim: [outer, pieces, inner] bytes.
struct Cut {
  int64_t outer = 1, pieces = 1, inner = 1;
  /// `layout` is the one in which `placement`'s dim is not yet divided.
  Cut(const Layout& layout, Placement placement, int group, DType dtype) : pieces(group), inner(size_of(dtype)) {
    const Shape whole = layout.box();
    const int dim = layout.is_transposed() ? 1 - placement.dim : placement.dim;
    for (int d = 0; d < dim; ++d) outer *= whole[d];
    for (int d = dim; d < whole.dims(); ++d) inner *= whole[d];
    inner /= pieces;
  }
  bool contiguous() const { return outer == 1; }  // true if each piece is contiguous
};

}  // namespace

/// Runs one step of a route on one rank: begin() runs a local step or starts a collective; end() completes the
/// collective.
class Mover {
 public:
  Mover(Exec& ex, Transit& transit)
      : ex_(ex),
        t_(transit),
        step_(t_.route_->steps[t_.step_]),
        after_(t_.before_->with(step_.axes, step_.to)),
        comm_(t_.mesh_->along(step_.axes, t_.purpose_)) {}

  static Transit start(Exec& ex, Mesh& mesh, comm::Purpose purpose, const Layout& from, const Layout& to,
                       const Tensor& in, Scratch&& owned, const Tensor& out, bool in_place = false) {
    TRAINER_CHECK(in.shape == from.local(mesh.rank()) && in.packed(), "input {} is not the shard of rank {} in {}",
                  to_string(in), mesh.rank(), to_string(from));
    TRAINER_CHECK(!out || (out.shape == to.local(mesh.rank()) && out.packed() && out.dtype == in.dtype),
                  "output {} is not the shard of rank {} in {}", to_string(out), mesh.rank(), to_string(to));
    Transit t;
    t.mesh_ = &mesh;
    t.purpose_ = purpose;
    t.route_.reset(&mesh.route(from, to));
    t.before_ = from;
    t.tensor_ = in;
    t.owned_ = std::move(owned);
    t.out_ = out;
    t.is_out_ = in_place;
    go_on(ex, t);
    return t;
  }

  /// Runs steps until a collective is in flight or the route ends.
  static void go_on(Exec& ex, Transit& t) {
    while (t.step_ < t.route_->steps.size() && !running(t)) Mover(ex, t).begin();
  }
  static bool running(const Transit& t) { return static_cast<bool>(t.received_); }
  static void end_running(Exec& ex, Transit& t) {
    if (t.ticket_.is_open()) t.ticket_.join(ex);
    Mover(ex, t).end();
  }

 private:
  void begin() {
    if (!step_.op) {
      step_.to == kPartial ? fill_up() : keep_part();
      return;
    }
    switch (*step_.op) {
      case CommOp::all_gather:
        return begin_all_gather();
      case CommOp::reduce_scatter: {
        if (step_.to.kind == Kind::split) pack();
        receive_result();
        t_.ticket_ = comm_.reduce_scatter(ex_, sent(), t_.received_);
        return;
      }
      case CommOp::all_to_all:
        pack();
        received_cut().contiguous() ? receive_result() : receive(take());
        t_.ticket_ = comm_.all_to_all(ex_, sent(), t_.received_);
        return;
      case CommOp::all_reduce:
        receive_over_input();
        t_.ticket_ = comm_.all_reduce(ex_, t_.received_);
        return;
      default:
        TRAINER_CHECK(false, "a route has no step {}", name_of(*step_.op));
    }
  }

  void end() {
    t_.packed_.reset();
    const bool pieces = (step_.op == CommOp::all_gather && step_.from != kFlat) || step_.op == CommOp::all_to_all;
    if (pieces && !received_cut().contiguous()) {
      // The pieces were received back to back; the result has them side by side.
      t_.owned_.reset();
      const Tensor apart = std::exchange(t_.received_, {});
      const Scratch memory = std::move(t_.place_);
      receive_result();
      const Cut cut = received_cut();
      exchange(ex_, apart, t_.received_, cut.pieces, cut.outer, cut.inner);
    }
    arrive();
  }

  void begin_all_gather() {
    step_.from == kFlat || received_cut().contiguous() ? receive_result() : receive(take());
    t_.ticket_ = comm_.all_gather(ex_, t_.tensor_, t_.received_);
  }

  /// Keeps this rank's part of a replicated tensor: B→S, B→flat.
  void keep_part() {
    receive_result();
    const Tensor out = t_.received_;
    if (step_.to == kFlat) {
      const int64_t begin = comm_.chunk(t_.tensor_.count()).begin;
      copy_rows(ex_, at(t_.tensor_, begin * size_of(out.dtype)), 0, out.data, 0, 1, out.bytes());
    } else {
      const Cut whole(*t_.before_, step_.to, step_.group, out.dtype);
      copy_rows(ex_, at(t_.tensor_, comm_.rank() * whole.inner), whole.pieces * whole.inner, out.data, whole.inner,
                whole.outer, whole.inner);
    }
    arrive();
  }

  /// Turns a tensor into partial sums, B→P, S→P, flat→P: fills what this rank does not contribute with zeros, so that
  /// the sum over the ranks is the tensor.
  void fill_up() {
    const bool whole_here = step_.from == kReplicate;
    if (whole_here && first()) {
      receive_over_input();
      return arrive();
    }
    if (whole_here && (t_.owned_ || t_.is_out_)) {
      receive_over_input();
    } else {
      receive_result();
    }
    const Tensor out = t_.received_;
    fill_zeros(ex_, out);
    if (step_.from == kFlat) {
      const int64_t begin = comm_.chunk(out.count()).begin;
      copy_rows(ex_, t_.tensor_.data, 0, at(out, begin * size_of(out.dtype)), 0, 1, t_.tensor_.bytes());
    } else if (!whole_here) {
      const Cut whole(after_, step_.from, step_.group, out.dtype);
      copy_rows(ex_, t_.tensor_.data, whole.inner, at(out, comm_.rank() * whole.inner), whole.pieces * whole.inner,
                whole.outer, whole.inner);
    }
    arrive();
  }

  bool first() const { return comm_.rank() == 0; }
  bool last() const { return t_.step_ + 1 == t_.route_->steps.size(); }
  Cut received_cut() const { return {after_, step_.from, step_.group, t_.tensor_.dtype}; }
  Scratch take(Shape shape) const { return ex_.take("redistribute", shape, t_.tensor_.dtype); }
  Scratch take() const { return take(after_.local(t_.mesh_->rank())); }

  /// Copies the input so that each piece is contiguous, unless it already is.
  void pack() {
    const Cut whole(*t_.before_, step_.to, step_.group, t_.tensor_.dtype);
    if (whole.contiguous()) return;
    t_.packed_ = take(t_.tensor_.shape);
    exchange(ex_, t_.tensor_, t_.packed_, whole.outer, whole.pieces, whole.inner);
    t_.owned_.reset();
  }
  const Tensor& sent() const { return t_.packed_ ? t_.packed_.tensor() : t_.tensor_; }

  void receive(Scratch&& place) {
    t_.place_ = std::move(place);
    t_.received_ = t_.place_;
  }
  /// Receives into new memory; in the last step, into the caller's `out` if there is one.
  void receive_result() {
    if (!last() || !t_.out_) return receive(take());
    t_.received_ = t_.out_;
    t_.is_out_ = true;
  }
  /// Receives into the input, or into a copy if the caller owns the input.
  void receive_over_input() {
    if (t_.owned_) return receive(std::move(t_.owned_));
    if (t_.is_out_) {
      t_.received_ = t_.tensor_;
      return;
    }
    last() && t_.out_ ? receive_result() : receive(take(t_.tensor_.shape));
    copy_whole(ex_, t_.tensor_, t_.received_);
  }
  /// Makes the received tensor the input of the next step.
  void arrive() {
    if (t_.place_) t_.is_out_ = false;
    t_.tensor_ = std::exchange(t_.received_, {});
    t_.owned_ = std::move(t_.place_);
    t_.before_ = after_;
    ++t_.step_;
  }

  Exec& ex_;
  Transit& t_;
  const Step& step_;
  const Layout after_;
  comm::Communicator& comm_;
};

void Transit::wait(Exec& ex) {
  if (ticket_.is_open()) ticket_.join(ex);
}

Scratch Transit::finish(Exec& ex) {
  if (route_ == nullptr) return std::move(owned_);
  while (Mover::running(*this)) {
    Mover::end_running(ex, *this);
    Mover::go_on(ex, *this);
  }
  route_.reset();
  if (out_ && !is_out_) {
    copy_whole(ex, tensor_, out_);
    owned_.reset();
  }
  return std::move(owned_);
}

Transit start_move(Exec& ex, Mesh& mesh, comm::Purpose purpose, const Layout& from, const Layout& to, Scratch&& in,
                   const Tensor& out) {
  if (from == to && !out) return Transit(std::move(in));
  const Tensor tensor = in;
  return Mover::start(ex, mesh, purpose, from, to, tensor, std::move(in), out);
}

Transit start_move(Exec& ex, Mesh& mesh, comm::Purpose purpose, const Layout& from, const Layout& to, const Tensor& in,
                   const Tensor& out) {
  if (from == to && !out) return {};
  return Mover::start(ex, mesh, purpose, from, to, in, {}, out);
}

Transit start_move_in_place(Exec& ex, Mesh& mesh, comm::Purpose purpose, const Layout& from, const Layout& to,
                            const Tensor& inout) {
  if (from == to) return {};
  return Mover::start(ex, mesh, purpose, from, to, inout, {}, inout, true);
}

}  // namespace trainer::mesh
