#include "parallel/megatron1d.h"

#include "ops/embedding.h"
#include "ops/gemm.h"
#include "parallel/linear_gradient.h"
#include "parallel/local_norm.h"
#include "parallel/vocab.h"

namespace trainer::parallel {
namespace {

using comm::Ticket;
using mesh::split;
using params::GradSlot;
using params::Init;
using params::Part;
using params::SlotId;
using Axis = Megatron1D::Axis;

/// Weight (and bias) of a linear, side by side by parts.
class ShardedLinear : public Linear {
 public:
  int64_t local_in() const final { return axis_.store.box(weight_)[0]; }
  int64_t local_out() const final { return axis_.store.box(weight_)[1]; }

 protected:
  ShardedLinear(const Axis& axis, int group, const std::vector<Part>& weights, const std::vector<Part>& biases)
      : axis_(axis), weight_(axis.store.add_slot(group, weights)) {
    if (!biases.empty()) bias_ = axis.store.add_slot(group, biases);
  }

  /// x·W, with the epilogue's rest filled in by the caller.
  ops::Gemm product(Exec& ex, const Tensor& x, const Tensor& y) const {
    return {.a = x, .b = axis_.store.weight(weight_), .c = y, .packed_b = axis_.store.packed(ex, weight_, false)};
  }
  /// dY·Wᵀ
  ops::Gemm transposed(Exec& ex, const Tensor& dy, const Tensor& dx) const {
    return {.a = dy,
            .b = axis_.store.weight(weight_),
            .c = dx,
            .trans_b = true,
            .packed_b = axis_.store.packed(ex, weight_, true)};
  }
  /// Of weight and bias, from the same rows.
  void gradients(Exec& ex, const Tensor& x, const Tensor& dy, GradSink& grads) const {
    if (bias_ < 0) return weight_gradient(ex, x, dy, grads);
    const GradSlot dw = grads.slot(ex, weight_), db = grads.slot(ex, bias_);
    linear_gradient(ex, x, dy, dw, db);
    grads.ready(ex, weight_);
    grads.ready(ex, bias_);
  }
  void weight_gradient(Exec& ex, const Tensor& x, const Tensor& dy, GradSink& grads) const {
    linear_gradient(ex, x, dy, grads.slot(ex, weight_), {});
    grads.ready(ex, weight_);
  }
  void bias_gradient(Exec& ex, const Tensor& dy, GradSink& grads) const {
    if (bias_ < 0) return;
    const GradSlot db = grads.slot(ex, bias_);
    ops::run(ex, ops::ColumnSum{dy, db.tensor, db.accumulate});
    grads.ready(ex, bias_);
  }
  Tensor bias() const { return bias_ < 0 ? Tensor{} : axis_.store.weight(bias_); }

  const Axis axis_;

 private:
  SlotId weight_, bias_ = -1;
};

/// Expand: columns are cut, y = act(x·W_r + b_r).
class ColumnLinear final : public ShardedLinear {
 public:
  ColumnLinear(const Axis& axis, int group, const LinearSpec& spec)
      : ShardedLinear(axis, group, weights(axis, spec), biases(axis, spec)) {}

  Scratch forward(Exec& ex, const Batch& batch, const Tensor& x, const ForwardFusion& fusion) override {
    TRAINER_CHECK(!fusion.residual && !fusion.dropout, "an expand linear does not lead into the residual stream");
    Scratch all;
    if (axis_.splits_rows(batch)) all = axis_.gather_rows(ex, x);
    const Tensor& rows = all ? all.tensor() : x;
    Scratch y = ex.take("linear.y", {rows.rows(), local_out()}, x.dtype);
    ops::Gemm op = product(ex, rows, y);
    op.epilogue = {.bias = bias(), .act = fusion.act, .pre = fusion.pre};
    ops::run(ex, op);
    return y;
  }

  Scratch backward(Exec& ex, const Batch& batch, const Tensor& dy, const Tensor& x, const BackwardFusion& fusion,
                   GradSink& grads) override {
    TRAINER_CHECK(fusion.act == ops::Activation::none, "dx of an expand linear is a sum over ranks first");
    if (!axis_.splits_rows(batch)) {
      Scratch dx = ex.take("linear.dx", {dy.rows(), local_in()}, dy.dtype);
      ops::run(ex, transposed(ex, dy, dx));
      Ticket sum = axis_.started(ex, axis_.ranks.all_reduce(ex, dx));
      gradients(ex, x, dy, grads);  // hides the sum
      if (sum.open()) sum.join(ex);
      return dx;
    }
    Scratch all = ex.take("linear.x", {dy.rows(), local_in()}, dy.dtype);
    Ticket gather = axis_.started(ex, axis_.ranks.all_gather(ex, x, all));
    Scratch sums = ex.take("linear.dx_all", {dy.rows(), local_in()}, dy.dtype);
    ops::run(ex, transposed(ex, dy, sums));  // hides the gather
    if (gather.open()) gather.join(ex);
    Scratch dx = ex.take("linear.dx", x.shape, dy.dtype);
    Ticket scatter = axis_.started(ex, axis_.ranks.reduce_scatter(ex, sums, dx));
    gradients(ex, all, dy, grads);  // hides the scatter
    if (scatter.open()) scatter.join(ex);
    return dx;
  }

 private:
  // Key/value heads that several ranks share: each adds the gradient of its own query heads.
  static Part part(const Axis& axis, const LinearPart& part, std::string name, Shape shape, Init init) {
    const bool shared = part.heads > 0 && part.heads < axis.size();
    const mesh::AxisSet axes = shared ? axis.kv : axis.axes;
    return {std::move(name), axis.store.whole(shape).with(axes, split(shape.dims() - 1)), init,
            shared ? axis.rep : mesh::AxisSet{0}};
  }
  static std::vector<Part> weights(const Axis& axis, const LinearSpec& spec) {
    std::vector<Part> parts;
    for (const LinearPart& p : spec.parts)
      parts.push_back(part(axis, p, p.name + ".weight", {spec.in, p.out}, {Init::Kind::normal, spec.init_std}));
    return parts;
  }
  static std::vector<Part> biases(const Axis& axis, const LinearSpec& spec) {
    std::vector<Part> parts;
    if (spec.bias)
      for (const LinearPart& p : spec.parts)
        parts.push_back(part(axis, p, p.name + ".bias", {p.out}, {Init::Kind::zeros, 0}));
    return parts;
  }
};

/// Contract: rows are cut, y = residual + dropout(Σ_r x_r·W_r + b). The bias is added once, after the sum.
class RowLinear final : public ShardedLinear {
 public:
  RowLinear(const Axis& axis, int group, const LinearSpec& spec)
      : ShardedLinear(axis, group, weights(axis, spec), biases(axis, spec)) {}

  Scratch forward(Exec& ex, const Batch& batch, const Tensor& x, const ForwardFusion& fusion) override {
    TRAINER_CHECK(fusion.act == ops::Activation::none && !fusion.pre, "a contract linear has no activation");
    Scratch y = ex.take("linear.addend", {x.rows(), local_out()}, x.dtype);
    ops::run(ex, product(ex, x, y));
    y = axis_.sum(ex, batch, std::move(y));
    const ops::DropoutSite site = fusion.dropout.value_or(ops::DropoutSite{});
    ops::run(ex, ops::DropoutAdd{.x = y, .residual = fusion.residual, .y = y, .site = site, .bias = bias()});
    return y;
  }

  Scratch backward(Exec& ex, const Batch& batch, const Tensor& dy, const Tensor& x, const BackwardFusion& fusion,
                   GradSink& grads) override {
    Scratch all;
    Ticket gather;
    if (axis_.splits_rows(batch)) {
      all = ex.take("linear.dy", {batch.rows(), local_out()}, dy.dtype);
      gather = axis_.started(ex, axis_.ranks.all_gather(ex, dy, all));
    }
    if (all) bias_gradient(ex, dy, grads);  // of this rank's rows
    if (gather.open()) gather.join(ex);
    const Tensor& rows = all ? all.tensor() : dy;
    Scratch dx = ex.take("linear.dx", {rows.rows(), local_in()}, dy.dtype);
    ops::Gemm op = transposed(ex, rows, dx);
    op.epilogue = {.act = fusion.act, .pre = fusion.pre, .gradient = fusion.act != ops::Activation::none};
    ops::run(ex, op);
    all ? weight_gradient(ex, x, rows, grads) : gradients(ex, x, rows, grads);
    return dx;
  }

 private:
  static std::vector<Part> weights(const Axis& axis, const LinearSpec& spec) {
    TRAINER_CHECK(spec.parts.size() == 1, "a contract linear has one part");
    return {{spec.parts[0].name + ".weight",
             axis.store.whole({spec.in, spec.parts[0].out}).with(axis.axes, split(0)),
             {Init::Kind::normal, spec.init_std}}};
  }
  static std::vector<Part> biases(const Axis& axis, const LinearSpec& spec) {
    if (!spec.bias) return {};
    return {{spec.parts[0].name + ".bias", axis.store.whole({spec.parts[0].out}), {}, axis.row_axes()}};
  }
};

/// The table's rows are cut; positions are on every rank, and added once, after the sum.
class VocabEmbedding final : public Embedding {
 public:
  VocabEmbedding(const Axis& axis, int group, const EmbeddingSpec& spec, SlotId table)
      : axis_(axis), table_(table), vocab_(spec.vocab) {
    if (spec.positions > 0)
      positions_ = axis.store.add_slot(group, {{"wpe",
                                                axis.store.whole({spec.positions, spec.d_model}),
                                                {Init::Kind::normal, spec.init_std},
                                                axis.row_axes()}});
  }

  Scratch forward(Exec& ex, const Batch& batch) override {
    const Tensor table = axis_.store.weight(table_);
    Scratch y = ex.take("embedding.addend", {batch.rows(), table.cols()}, table.dtype);
    ops::run(ex, ops::EmbeddingForward{.ids = batch.ids, .table = table, .positions = {}, .y = y, .shard = shard()});
    y = axis_.sum(ex, batch, std::move(y));
    if (positions_ >= 0)
      ops::run(ex, ops::AddPositions{.positions = axis_.store.weight(positions_),
                                     .y = y,
                                     .rows_per_sequence = batch.seq_len,
                                     .first_position = batch.first_position,
                                     .first_row = batch.residual.first_row});
    return y;
  }

  void backward(Exec& ex, const Batch& batch, const Tensor& dy, GradSink& grads) override {
    Scratch all;
    Ticket gather;
    if (axis_.splits_rows(batch)) {
      all = ex.take("embedding.dy", {batch.rows(), dy.cols()}, dy.dtype);
      gather = axis_.started(ex, axis_.ranks.all_gather(ex, dy, all));
    }
    if (positions_ >= 0) {
      const GradSlot positions = grads.slot(ex, positions_);
      ops::run(ex, ops::PositionsBackward{.dy = dy,
                                          .dpositions = positions.tensor,
                                          .rows_per_sequence = batch.seq_len,
                                          .first_row = batch.residual.first_row,
                                          .accumulate = positions.accumulate});
    }
    if (gather.open()) gather.join(ex);
    const GradSlot table = grads.slot(ex, table_);
    ops::run(ex, ops::EmbeddingBackward{batch.ids, all ? all.tensor() : dy, table.tensor, table.accumulate, shard()});
  }

 private:
  ops::TableShard shard() const { return {axis_.rank() * axis_.store.box(table_)[0], vocab_}; }
  const Axis axis_;
  SlotId table_, positions_ = -1;
  int64_t vocab_;
};

/// Logits of this rank's tokens, for all rows of a chunk. With sequence parallelism a chunk holds as many rows of every
/// rank, so that its features are gathered and its dx scattered while it is at hand.
class VocabHead final : public Head {
 public:
  VocabHead(const Axis& axis, int64_t vocab, SlotId table) : axis_(axis), vocab_(vocab), table_(table) {}

  double loss(Exec& ex, const Batch& batch, const Tensor& x) override { return walk(ex, batch, x, {}, nullptr); }

  double loss_backward(Exec& ex, const Batch& batch, const Tensor& x, Scratch& dx, GradSink& grads) override {
    dx = ex.take("head.dx", x.shape, x.dtype);
    return walk(ex, batch, x, dx, &grads);
  }

  Scratch logits(Exec& ex, const Tensor& x) override {
    TRAINER_CHECK(x.rows() == 1, "logits of {} rows are not gathered", x.rows());
    const Scratch own = own_logits(ex, x);
    Scratch all = ex.take("head.all_logits", {1, axis_.size() * own.tensor().cols()}, own.tensor().dtype);
    axis_.ranks
        .all_gather(ex, own.tensor().reshape({own.tensor().count()}), all.tensor().reshape({all.tensor().count()}))
        .join(ex);
    return all;
  }

 private:
  Scratch own_logits(Exec& ex, const Tensor& x) {
    const Tensor table = axis_.store.weight(table_);
    Scratch out = ex.take("head.logits", {x.rows(), table.rows()}, accumulator_of(x.dtype));
    ops::run(
        ex, ops::Gemm{.a = x, .b = table, .c = out, .trans_b = true, .packed_b = axis_.store.packed(ex, table_, true)});
    return out;
  }

  /// Columns of a [N] vector that belong to local rows [first, first + rows) of every rank.
  Scratch pick(Exec& ex, const Tensor& all, int64_t first, int64_t rows) {
    Scratch picked = ex.take("head.rows", {axis_.size() * rows}, all.dtype);
    for (int64_t r = 0; r < axis_.size(); ++r)
      ops::run(ex, ops::Copy{all.range(r * all.count() / axis_.size() + first, rows),
                             picked.tensor().range(r * rows, rows)});
    return picked;
  }

  double walk(Exec& ex, const Batch& batch, const Tensor& x, const Tensor& dx, GradSink* grads) {
    const Tensor table = axis_.store.weight(table_);
    const DType sums = accumulator_of(x.dtype);
    const bool gathers = axis_.splits_rows(batch);
    const int64_t wide = gathers ? axis_.size() : 1, first_token = axis_.rank() * table.rows();
    const int64_t chunk = std::max<int64_t>(1, head_chunk(ex.device, batch.rows(), table.rows(), sums) / wide);
    Scratch own_losses;
    if (!batch.losses) own_losses = ex.take("head.losses", {batch.rows()}, DType::f64);
    const Tensor losses = batch.losses ? batch.losses : own_losses.tensor();
    for (int64_t first = 0; first < x.rows(); first += chunk) {
      const int64_t rows = std::min(chunk, x.rows() - first);
      Scratch all, targets, weights;
      if (gathers) {
        all = axis_.gather_rows(ex, x.row_range(first, rows));
        targets = pick(ex, batch.targets, first, rows);
        weights = pick(ex, batch.weights, first, rows);
      }
      const Tensor f = gathers ? all.tensor() : x.row_range(first, rows);
      const Scratch scores = own_logits(ex, f);
      Scratch own;  // dlogits take the place of the logits when the types agree
      if (grads != nullptr && sums != x.dtype) own = ex.take("head.dlogits", scores.tensor().shape, x.dtype);
      const Tensor dlogits = grads == nullptr ? Tensor{} : own ? own.tensor() : scores.tensor();
      run(ex, axis_.ranks,
          ShardedLoss{.shard = {.logits = scores,
                                .targets = gathers ? targets.tensor() : batch.targets.range(first, rows),
                                .first = first_token,
                                .vocab = std::clamp<int64_t>(vocab_ - first_token, 0, table.rows())},
                      .weights = gathers ? weights.tensor() : batch.weights.range(first, rows),
                      .loss = losses.range(wide * first, wide * rows),
                      .dlogits = dlogits,
                      .vocabulary = vocab_,
                      .scale = batch.loss_scale});
      if (grads != nullptr) backward(ex, dlogits, f, dx.row_range(first, rows), *grads);
    }
    return batch.losses ? 0 : sum_of_losses(ex, losses);
  }

  // df = Σ_r dlogits_r·E_r, behind dE_r (+)= dlogits_rᵀ·f
  void backward(Exec& ex, const Tensor& dlogits, const Tensor& f, const Tensor& dx, GradSink& grads) {
    const bool scatters = f.rows() != dx.rows();
    Scratch all;
    if (scatters) all = ex.take("head.dx_all", f.shape, f.dtype);
    const Tensor df = scatters ? all.tensor() : dx;
    ops::run(
        ex,
        ops::Gemm{
            .a = dlogits, .b = axis_.store.weight(table_), .c = df, .packed_b = axis_.store.packed(ex, table_, false)});
    Ticket sum = axis_.started(ex, scatters ? axis_.ranks.reduce_scatter(ex, df, dx) : axis_.ranks.all_reduce(ex, df));
    const GradSlot table = grads.slot(ex, table_);
    ops::run(ex, ops::Gemm{.a = dlogits, .b = f, .c = table.tensor, .trans_a = true, .accumulate = table.accumulate});
    if (sum.open()) sum.join(ex);
  }

  const Axis axis_;
  int64_t vocab_;
  SlotId table_;
};

}  // namespace

comm::Ticket Megatron1D::Axis::started(Exec& ex, Ticket ticket) const {
  if (!overlap) ticket.join(ex);
  return ticket;
}

Scratch Megatron1D::Axis::sum(Exec& ex, const Batch& batch, Scratch addend) const {
  if (!splits_rows(batch)) {
    ranks.all_reduce(ex, addend).join(ex);
    return addend;
  }
  const Tensor& all = addend;
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

bool Megatron1D::divides(const config::Model& model, int64_t tensor) {
  return model.n_head % tensor == 0 && model.d_ff % tensor == 0 && model.vocab_multiple % tensor == 0 &&
         (model.n_kv_head % tensor == 0 || tensor % model.n_kv_head == 0);
}

Megatron1D::Megatron1D(mesh::Mesh& mesh, ParamStore& store, bool sequence_parallel, bool overlap)
    : axis_{.store = store,
            .ranks = mesh.along("tensor", comm::Lane::critical),
            .axes = mesh.shape().set("tensor"),
            .kv = mesh.shape().has("kv") ? mesh.shape().set("kv") : 0,
            .rep = mesh.shape().has("kv") ? mesh.shape().set("rep") : 0,
            .sequence_parallel = sequence_parallel,
            .overlap = overlap} {}

Tile Megatron1D::residual(int, const Batch& batch) const {
  if (!axis_.splits_rows(batch)) return {.rows = batch.rows()};
  TRAINER_CHECK(batch.rows() % axis_.size() == 0, "{} token rows do not divide over {} ranks", batch.rows(),
                axis_.size());
  const int64_t rows = batch.rows() / axis_.size();
  return {.first_row = axis_.rank() * rows, .rows = rows};
}

Strategy::Heads Megatron1D::heads(int64_t heads) const {
  return {axis_.rank() * heads / axis_.size(), std::max<int64_t>(1, heads / axis_.size())};
}

std::unique_ptr<Linear> Megatron1D::linear(int, int group, const LinearSpec& spec) {
  if (spec.role == Role::expand) return std::make_unique<ColumnLinear>(axis_, group, spec);
  return std::make_unique<RowLinear>(axis_, group, spec);
}

std::unique_ptr<Norm> Megatron1D::norm(int, int group, const NormSpec& spec) {
  return local_norm(axis_.store, group, spec, axis_.row_axes());
}

SlotId Megatron1D::add_table(int group, const std::string& name, const EmbeddingSpec& spec) {
  const mesh::Layout layout = axis_.store.whole({spec.vocab, spec.d_model})
                                  .padded(0, padded_vocab(spec, axis_.size()))
                                  .with(axis_.axes, split(0));
  return axis_.store.add_slot(group, {{name, layout, {Init::Kind::normal, spec.init_std}}});
}

std::unique_ptr<Embedding> Megatron1D::embedding(int group, const EmbeddingSpec& spec) {
  table_ = add_table(group, "wte", spec);
  return std::make_unique<VocabEmbedding>(axis_, group, spec, table_);
}

std::unique_ptr<Head> Megatron1D::head(int group, const EmbeddingSpec& spec, bool tied) {
  TRAINER_CHECK(!tied || table_ >= 0, "a tied head before its embedding");
  return std::make_unique<VocabHead>(axis_, spec.vocab, tied ? table_ : add_table(group, "head.weight", spec));
}

}  // namespace trainer::parallel
