#include "parallel/serial.h"

#include "ops/embedding.h"
#include "ops/gemm.h"
#include "parallel/linear_gradient.h"
#include "parallel/local_norm.h"
#include "parallel/vocab.h"

namespace trainer::parallel {
namespace {

using params::Init;
using params::Part;
using params::SlotId;

class SerialLinear final : public Linear {
 public:
  SerialLinear(ParamStore& store, int group, const LinearSpec& spec) : store_(store), in_(spec.in) {
    std::vector<Part> weights, biases;
    for (const LinearPart& part : spec.parts) {
      out_ += part.out;
      weights.push_back({part.name + ".weight", store.whole({in_, part.out}), {Init::Kind::normal, spec.init_std}});
      biases.push_back({part.name + ".bias", store.whole({part.out}), {Init::Kind::zeros, 0}});
    }
    weight_ = store.add_slot(group, std::move(weights));
    if (spec.bias) bias_ = store.add_slot(group, std::move(biases));
  }

  int64_t local_in() const override { return in_; }
  int64_t local_out() const override { return out_; }

  Scratch forward(Exec& ex, const Batch&, const Tensor& x, const ForwardFusion& fusion) override {
    Scratch y = ex.take("linear.y", {x.rows(), out_}, x.dtype);
    ops::Gemm product{.a = x, .b = store_.weight(weight_), .c = y, .packed_b = store_.packed(ex, weight_, false)};
    product.epilogue.bias = bias_ < 0 ? Tensor{} : store_.weight(bias_);
    product.epilogue.act = fusion.act;
    product.epilogue.pre = fusion.pre;
    if (!fusion.dropout) product.epilogue.residual = fusion.residual;
    ops::run(ex, product);
    if (fusion.dropout) ops::run(ex, ops::DropoutAdd{y, fusion.residual, y, *fusion.dropout, {}});
    return y;
  }

  Scratch backward(Exec& ex, const Batch&, const Tensor& dy, const Tensor& x, const BackwardFusion& fusion,
                   GradSink& grads) override {
    Scratch dx = ex.take("linear.dx", {dy.rows(), in_}, dy.dtype);
    // dX = dY·Wᵀ, through the activation that made x
    ops::Gemm product{
        .a = dy, .b = store_.weight(weight_), .c = dx, .trans_b = true, .packed_b = store_.packed(ex, weight_, true)};
    product.epilogue.act = fusion.act;
    product.epilogue.pre = fusion.pre;
    product.epilogue.gradient = fusion.act != ops::Activation::none;
    ops::run(ex, product);
    const params::GradSlot dw = grads.slot(ex, weight_);
    const params::GradSlot db = bias_ >= 0 ? grads.slot(ex, bias_) : params::GradSlot{};
    linear_gradient(ex, x, dy, dw, db);
    return dx;
  }

 private:
  ParamStore& store_;
  int64_t in_, out_ = 0;
  SlotId weight_ = -1, bias_ = -1;
};

class SerialEmbedding final : public Embedding {
 public:
  SerialEmbedding(ParamStore& store, int group, const EmbeddingSpec& spec, SlotId table)
      : store_(store), width_(spec.d_model), table_(table) {
    if (spec.positions > 0)
      positions_ =
          store.add_slot(group, {{"wpe", store.whole({spec.positions, width_}), {Init::Kind::normal, spec.init_std}}});
  }

  Scratch forward(Exec& ex, const Batch& batch) override {
    Scratch y = ex.take("embedding.y", {batch.rows(), width_}, store_.compute_dtype());
    ops::run(ex, ops::EmbeddingForward{batch.ids, store_.weight(table_), positions(), y, batch.seq_len,
                                       batch.first_position});
    return y;
  }

  void backward(Exec& ex, const Batch& batch, const Tensor& dy, GradSink& grads) override {
    const params::GradSlot table = grads.slot(ex, table_);
    ops::run(ex, ops::EmbeddingBackward{batch.ids, dy, table.tensor, table.accumulate});
    if (positions_ < 0) return;
    const params::GradSlot positions = grads.slot(ex, positions_);
    ops::run(ex, ops::PositionsBackward{.dy = dy,
                                        .dpositions = positions.tensor,
                                        .rows_per_sequence = batch.seq_len,
                                        .accumulate = positions.accumulate});
  }

 private:
  Tensor positions() const { return positions_ < 0 ? Tensor{} : store_.weight(positions_); }
  ParamStore& store_;
  int64_t width_;
  SlotId table_, positions_ = -1;
};

class SerialHead final : public Head {
 public:
  SerialHead(ParamStore& store, int64_t vocab, SlotId table) : store_(store), vocab_(vocab), table_(table) {}

  double loss(Exec& ex, const Batch& batch, const Tensor& x) override {
    return walk(
        ex, batch, x, [](int64_t, int64_t, const Tensor&) {}, /*gradient=*/false);
  }

  double loss_backward(Exec& ex, const Batch& batch, const Tensor& x, Scratch& dx, GradSink& grads) override {
    dx = ex.take("head.dx", x.shape, x.dtype);
    return walk(
        ex, batch, x,
        [&](int64_t first, int64_t rows, const Tensor& dlogits) {
          // df = dlogits·E;  dE (+)= dlogitsᵀ·f
          ops::run(ex, ops::Gemm{.a = dlogits,
                                 .b = store_.weight(table_),
                                 .c = dx.tensor().row_range(first, rows),
                                 .packed_b = store_.packed(ex, table_, false)});
          const params::GradSlot table = grads.slot(ex, table_);
          ops::run(ex, ops::Gemm{.a = dlogits,
                                 .b = x.row_range(first, rows),
                                 .c = table.tensor,
                                 .trans_a = true,
                                 .accumulate = table.accumulate});
        },
        /*gradient=*/true);
  }

  Scratch logits(Exec& ex, const Tensor& x) override {
    const Tensor table = store_.weight(table_);
    Scratch out = ex.take("head.logits", {x.rows(), table.rows()}, accumulator_of(x.dtype));
    ops::run(ex, ops::Gemm{.a = x, .b = table, .c = out, .trans_b = true, .packed_b = store_.packed(ex, table_, true)});
    return out;
  }

 private:
  template <typename F>
  double walk(Exec& ex, const Batch& batch, const Tensor& x, F&& each, bool gradient) {
    const int64_t n = x.rows(), padded = store_.weight(table_).rows();
    const DType sums = accumulator_of(x.dtype);
    const int64_t chunk = head_chunk(ex.device, n, padded, sums);
    Scratch own_losses;
    if (!batch.losses) own_losses = ex.take("head.losses", {n}, DType::f64);
    const Tensor losses = batch.losses ? batch.losses : own_losses.tensor();
    for (int64_t first = 0; first < n; first += chunk) {
      const int64_t rows = std::min(chunk, n - first);
      Scratch scores = logits(ex, x.row_range(first, rows));
      Scratch own;  // dlogits take the place of the logits when the types agree
      if (gradient && sums != x.dtype) own = ex.take("head.dlogits", {rows, padded}, x.dtype);
      const Tensor dlogits = !gradient ? Tensor{} : own ? own.tensor() : scores.tensor();
      ops::run(ex, ops::CrossEntropy{.logits = scores,
                                     .targets = batch.targets.range(first, rows),
                                     .weights = batch.weights.range(first, rows),
                                     .loss = losses.range(first, rows),
                                     .dlogits = dlogits,
                                     .vocab = vocab_,
                                     .scale = batch.loss_scale});
      each(first, rows, dlogits);
    }
    return batch.losses ? 0 : sum_of_losses(ex, losses);
  }

  ParamStore& store_;
  int64_t vocab_;
  SlotId table_;
};

SlotId add_table(ParamStore& store, int group, const std::string& name, const EmbeddingSpec& spec) {
  const mesh::Layout layout = store.whole({spec.vocab, spec.d_model}).padded(0, padded_vocab(spec, 1));
  return store.add_slot(group, {{name, layout, {Init::Kind::normal, spec.init_std}}});
}

}  // namespace

std::unique_ptr<Linear> Serial::linear(int, int group, const LinearSpec& spec) {
  return std::make_unique<SerialLinear>(store_, group, spec);
}

std::unique_ptr<Norm> Serial::norm(int, int group, const NormSpec& spec) { return local_norm(store_, group, spec); }

std::unique_ptr<Embedding> Serial::embedding(int group, const EmbeddingSpec& spec) {
  table_ = add_table(store_, group, "wte", spec);
  return std::make_unique<SerialEmbedding>(store_, group, spec, table_);
}

std::unique_ptr<Head> Serial::head(int group, const EmbeddingSpec& spec, bool tied) {
  if (!tied) return std::make_unique<SerialHead>(store_, spec.vocab, add_table(store_, group, "head.weight", spec));
  TRAINER_CHECK(table_ >= 0, "a tied head before its embedding");
  return std::make_unique<SerialHead>(store_, spec.vocab, table_);
}

}  // namespace trainer::parallel
