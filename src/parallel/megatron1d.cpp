#include "parallel/megatron1d.h"

#include "parallel/finish.h"

namespace trainer::parallel {
namespace {

using comm::Ticket;
using mesh::Layout;
using mesh::split;
using Axis = Megatron1D::Axis;

/// Where ranks share key/value heads, each adds the gradient of its own query heads.
auto cut_columns(const Axis& axis) {
  return [&axis](const LinearPart& part, const Layout& whole) -> Weights::Placed {
    const bool shared = part.heads > 0 && part.heads < axis.size();
    return {whole.with(shared ? axis.kv : axis.axes, split(whole.shape().dims() - 1)), shared ? axis.rep : AxisSet{0}};
  };
}

/// ColumnLinear reads the residual stream. Its columns are cut: y = act(x·W_r + b_r).
class ColumnLinear final : public Linear {
 public:
  ColumnLinear(const Axis& axis, int group, const LinearSpec& spec)
      : axis_(axis), weights_(axis.store, group, spec, cut_columns(axis), cut_columns(axis)) {}

  Scratch forward(Exec& ex, Rows rows, const Tensor& x, const ForwardFusion& fusion) override {
    TRAINER_CHECK(!fusion.residual && !fusion.dropout, "a linear that leads out of the residual stream");
    Scratch all;
    if (axis_.splits(rows)) all = axis_.gather_rows(ex, x);
    return multiply_and_finish(ex, weights_, all ? all.tensor() : x, fusion);
  }

  Scratch backward(Exec& ex, Rows rows, const Tensor& dy, const Tensor& x, const BackwardFusion& fusion,
                   GradSink& grads) override {
    TRAINER_CHECK(fusion.act == ops::Activation::none, "dx of these columns is a sum over ranks first");
    if (!axis_.splits(rows)) {
      Scratch dx = ex.take("linear.dx", {dy.rows(), weights_.in()}, dy.dtype);
      weights_.multiply_transposed(ex, dy, dx);
      Ticket sum = axis_.wait_unless_overlapping(ex, axis_.ranks.all_reduce(ex, dx));
      weights_.add_gradients(ex, x, dy, grads);  // hides the sum
      if (sum.is_open()) sum.join(ex);
      return dx;
    }
    Scratch all = ex.take("linear.x", {dy.rows(), weights_.in()}, dy.dtype);
    Ticket gather = axis_.wait_unless_overlapping(ex, axis_.ranks.all_gather(ex, x, all));
    Scratch sums = ex.take("linear.dx_all", {dy.rows(), weights_.in()}, dy.dtype);
    weights_.multiply_transposed(ex, dy, sums);  // hides the gather
    if (gather.is_open()) gather.join(ex);
    Scratch dx = ex.take("linear.dx", x.shape, dy.dtype);
    Ticket scatter = axis_.wait_unless_overlapping(ex, axis_.ranks.reduce_scatter(ex, sums, dx));
    weights_.add_gradients(ex, all, dy, grads);  // hides the scatter
    if (scatter.is_open()) scatter.join(ex);
    return dx;
  }

 private:
  const Axis axis_;
  const Weights weights_;
};

/// RowLinear writes the residual stream. Its rows are cut: y = residual + dropout(Σ_r x_r·W_r + b). The bias is added
/// once, after the sum.
class RowLinear final : public Linear {
 public:
  RowLinear(const Axis& axis, int group, const LinearSpec& spec)
      : axis_(axis),
        weights_(
            axis.store, group, spec,
            [&](const LinearPart&, const Layout& whole) -> Weights::Placed {
              return {whole.with(axis.axes, split(0))};
            },
            [&](const LinearPart&, const Layout& whole) -> Weights::Placed {
              return {whole, axis.stream().rows};
            }) {
    TRAINER_CHECK(spec.parts.size() == 1, "a linear that leads back has one part");
  }

  Scratch forward(Exec& ex, Rows rows, const Tensor& x, const ForwardFusion& fusion) override {
    TRAINER_CHECK(fusion.act == ops::Activation::none && fusion.pre == nullptr, "an activation within a sum");
    Scratch y = ex.take("linear.partial", {x.rows(), weights_.out()}, x.dtype);
    weights_.multiply(ex, x, y);
    y = axis_.reduce_to_stream(ex, rows, std::move(y));
    finish(ex, y, weights_.bias(), fusion);
    return y;
  }

  Scratch backward(Exec& ex, Rows rows, const Tensor& dy, const Tensor& x, const BackwardFusion& fusion,
                   GradSink& grads) override {
    Scratch all;
    Ticket gather;
    if (axis_.splits(rows)) {
      all = ex.take("linear.dy", {rows.count, weights_.out()}, dy.dtype);
      gather = axis_.wait_unless_overlapping(ex, axis_.ranks.all_gather(ex, dy, all));
      weights_.add_bias_gradient(ex, dy, grads);  // over this rank's rows
      if (gather.is_open()) gather.join(ex);
    }
    const Tensor& whole = all ? all.tensor() : dy;
    Scratch dx = ex.take("linear.dx", {whole.rows(), weights_.in()}, dy.dtype);
    weights_.multiply_transposed(ex, whole, dx, activation_backward(fusion));
    all ? weights_.add_weight_gradient(ex, x, whole, grads) : weights_.add_gradients(ex, x, whole, grads);
    return dx;
  }

 private:
  const Axis axis_;
  const Weights weights_;
};

}  // namespace

comm::Ticket Megatron1D::Axis::wait_unless_overlapping(Exec& ex, Ticket ticket) const {
  if (!overlap) ticket.join(ex);
  return ticket;
}

Scratch Megatron1D::Axis::reduce_to_stream(Exec& ex, Rows rows, Scratch partial) const {
  if (!splits(rows)) {
    ranks.all_reduce(ex, partial).join(ex);
    return partial;
  }
  const Tensor& all = partial;
  Scratch own = ex.take("residual", {all.rows() / size(), all.cols()}, all.dtype);
  ranks.reduce_scatter(ex, all, own).join(ex);
  return own;
}

Scratch Megatron1D::Axis::gather_rows(Exec& ex, const Tensor& shard) const {
  Scratch all = ex.take("rows", {size() * shard.rows(), shard.cols()}, shard.dtype);
  ranks.all_gather(ex, shard, all).join(ex);
  return all;
}

mesh::MeshShape Megatron1D::mesh_shape(int world, int tensor, int64_t kv_heads) {
  TRAINER_CHECK(world % tensor == 0, "{} ranks, {} tensor ranks", world, tensor);
  const int data = world / tensor, kv = static_cast<int>(kv_heads);
  if (kv == 0 || tensor <= kv) return mesh::MeshShape({{"data", data}, {"tensor", tensor}});
  TRAINER_CHECK(tensor % kv == 0, "{} key/value heads for {} tensor ranks", kv, tensor);
  return mesh::MeshShape({{"data", data}, {"kv", kv}, {"rep", tensor / kv}}, {{"tensor", {"kv", "rep"}}});
}

Megatron1D::Megatron1D(mesh::Mesh& mesh, ParamStore& store, bool sequence_parallel, bool overlap)
    : Megatron1D({.store = store,
                  .ranks = mesh.along("tensor", comm::Lane::critical),
                  .axes = mesh.shape().set("tensor"),
                  .kv = mesh.shape().has("kv") ? mesh.shape().set("kv") : 0,
                  .rep = mesh.shape().has("kv") ? mesh.shape().set("rep") : 0,
                  .sequence_parallel = sequence_parallel,
                  .overlap = overlap},
                 Ranks(mesh, overlap)) {}

std::unique_ptr<Linear> Megatron1D::linear(int, int group, const LinearSpec& spec) {
  if (reads_residual(spec.site)) return std::make_unique<ColumnLinear>(axis_, group, spec);
  return std::make_unique<RowLinear>(axis_, group, spec);
}

}  // namespace trainer::parallel
