// The memory of layouts, as LayerCosts estimates it.
#include <algorithm>

#include "optim/make.h"
#include "plan/layer_costs.h"

namespace trainer::plan {

double LayerCosts::matrix_bytes(AxisSet cut, double in, double out, const Kept& kept) const {
  const auto sum = static_cast<double>(size_of(accumulator_of(compute_)));  // bytes per element of a gradient
  const double masters = element_ == sum ? 0 : sum;
  double state = config_.offload.optimizer != config::OffloadOptimizer::none ? 0 : masters + kept.states;
  if (config_.parallel.zero_stage == 1) state /= ranks(axes_.data());
  return in * out / ranks(cut) * (element_ + sum + state);
}

double LayerCosts::stream_bytes(const Spread& spread) const {
  using config::Recompute;
  const Recompute mode = config_.train.recompute;
  const bool rebuilds_norms = mode == Recompute::selective && !has_post_norms(config_.model);
  const double kept = mode == Recompute::full ? 1 : rebuilds_norms ? 2 : 4;
  return kept * rows_ * width_ / ranks(spread.rows | spread.cols) * element_;
}
double LayerCosts::attention_bytes(const Spread& spread) const {
  // q, k, v and the context; with qk_norm also q and k before their norms.
  const bool keeps_both =
      query_key_norm(config_.model) != config::QkNorm::none && config_.train.recompute != config::Recompute::selective;
  return (keeps_both ? 3 : 2) * rows_ * (queries_ + keys_) / ranks(spread.rows | spread.cols) * element_;
}
double LayerCosts::hidden_bytes(const Spread& spread) const {
  const double kept = (gated_ ? 2 : 1) + (config_.train.recompute == config::Recompute::selective ? 0 : 1);
  return kept * rows_ * wide_ / ranks(spread.rows | spread.cols) * element_;
}

double LayerCosts::bytes(const ModelSharding& layout) const {
  const bool whole = config_.train.recompute == config::Recompute::full;
  double kept = 0, live = 0;  // saved by all layers; temporary in the current layer
  for (const sharding::Layer& layer : layout.layers) {
    const double inside = attention_bytes(layer.attention) + hidden_bytes(layer.hidden);
    double each = stream_bytes(layer.stream) + (whole ? 0 : inside), moved = 0;
    for (const Site site : sharding::kSites) {
      const LinearSharding& l = layer.at(site);
      const Matrix matrix = matrix_of(site);
      each += matrix_bytes(cut_of(l), matrix.in, matrix.out, linears_);
      if (l.schedule == sharding::GemmSchedule::ring) continue;  // holds only one block at a time
      const double block = matrix.in * matrix.out / ranks(l.contraction | l.cols) * element_;
      const bool gathers = ranks(l.flat) > 1;
      if (gathers && config_.parallel.cache_layers > 0) each += block;
      const bool reads = reads_residual(site);
      const Spread& from = reads ? layer.stream : layer.inside(site);
      const Spread& to = reads ? layer.inside(site) : layer.stream;
      double now = gathers ? 2 * block : 0;
      if (input_of(l) != placed(from)) now += rows_ * matrix.in / ranks(l.rows | l.contraction) * element_;
      if (partial_output_of(l) != placed(to)) now += rows_ * matrix.out / ranks(l.rows | l.cols) * element_;
      moved = std::max(moved, now);
    }
    kept += static_cast<double>(layer.count) * each;
    const double gradients = rows_ * element_ *
                             (wide_ / ranks(layer.hidden.rows | layer.hidden.cols) +
                              2 * width_ / ranks(layer.stream.rows | layer.stream.cols));
    live = std::max(live, gradients + moved + (whole ? inside + 3 * stream_bytes(layer.stream) : 0));
  }
  const sharding::VocabSpread& t = layout.table;
  // The head processes chunks of rows (parallel/vocab.h): their logits, and also the gradients of the logits if they
  // have a different type.
  const bool mixed = compute_ == DType::bf16;
  const AxisSet near = (layout.head.rows | t.flat) & ~(t.vocab | t.hidden);
  const double logits =
      rows_ / ranks(near) * vocab_ / ranks(t.vocab) * static_cast<double>(size_of(accumulator_of(compute_)));
  const double chunk = (mixed ? 1.5 : 1) * std::min(logits, (mixed ? 256.0 : 96.0) * (1 << 20));
  const double gathered = ranks(t.flat) > 1 ? vocab_ * width_ / ranks(t.vocab | t.hidden) * element_ : 0;
  const double tables = config_.model.tie_embeddings.value_or(true) ? 1 : 2;
  const double stays = t.keep ? tables * gathered : 0, passes = t.keep ? 0 : gathered;
  return kept + stays + std::max(live, passes + chunk) +
         tables * matrix_bytes(t.vocab | t.hidden | t.flat, width_, vocab_, tables_);
}

}  // namespace trainer::plan
