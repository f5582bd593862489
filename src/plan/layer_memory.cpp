// The memory of layouts, as LayerCosts estimates it.
#include <algorithm>

#include "plan/layer_costs.h"

namespace trainer::plan {
namespace {

/// Returns how many tensors of the residual stream's shape a layer keeps for its backward pass.
double streams_of(const config::Model& m, bool rebuilds) {
  const double kept = rebuilds ? (has_norms_after(m) ? 4 : 2) : place_of_norms(m) == config::NormPlace::both ? 6 : 4;
  return kept - (has_parallel_residual(m) ? 1 : 0);  // whose branches read one stream
}

}  // namespace

double LayerCosts::matrix_bytes(AxisSet cut, double in, double out, const Kept& kept, Gradients gradients) const {
  const auto wide = static_cast<double>(size_of(accumulator_of(compute_)));
  const double masters = element_ == wide ? 0 : wide;
  double state = config_.offload.optimizer != config::OffloadOptimizer::none ? 0 : masters + kept.states;
  if (config_.parallel.zero_stage == 1) state /= ranks(axes_.data());
  const double gradient = gradients == Gradients::own_memory ? wide : 0;
  return in * out / ranks(cut) * (element_ + gradient + state);
}

double LayerCosts::site_bytes(Site site, const LinearSharding& linear, AxisSet experts, Gradients gradients) const {
  double bytes = 0;
  for (const Matrix& matrix : matrices_.at(site))
    bytes += matrix.share *
             matrix_bytes(cut_of(matrix, linear, experts), matrix.count * matrix.in, matrix.out, linears_, gradients);
  return bytes;
}

LayerCosts::Gradients LayerCosts::gradients() const {
  const bool once = accumulation_ == 1 && config_.parallel.stages == 1;
  return once && config_.offload.optimizer == config::OffloadOptimizer::none ? Gradients::arena : Gradients::own_memory;
}

double LayerCosts::stream_bytes(const Spread& spread) const {
  return rows_ * width_ / ranks(spread.rows | spread.cols) * element_;
}
double LayerCosts::kept_streams() const { return streams_of(config_.model, rebuilds()); }
double LayerCosts::attention_bytes(const Spread& spread, bool rebuilds) const {
  // q, k, v and the context; with qk_norm also q and k before their norms.
  const bool keeps_both = query_key_norm(config_.model) != config::QkNorm::none && !rebuilds;
  return (keeps_both ? 3 : 2) * rows_ * (queries_ + keys_) / ranks(spread.rows | spread.cols) * element_;
}
double LayerCosts::received_rows(const Spread& spread, AxisSet experts) const {
  const double buffer = ranks(experts) > 1 ? std::min(config_.parallel.expert_buffer, ranks(experts)) : 0;
  return buffer * rows_ / ranks(spread.rows) * static_cast<double>(config_.model.experts_per_token);
}
double LayerCosts::hidden_bytes(const Spread& spread, bool rebuilds, AxisSet experts) const {
  const double kept = (gated_ ? 2 : 1) + (rebuilds ? 0 : 1);
  const double dense = kept * rows_ * wide_ / ranks(spread.rows | spread.cols) * element_;
  if (routed_ == 0) return dense;
  // Logits, choices with their order and place, and of an exchange the rows that arrived, instead of the mean.
  const config::Model& m = config_.model;
  const auto wide = static_cast<double>(size_of(accumulator_of(compute_)));
  const double rows = rows_ / ranks(spread.rows), chosen = static_cast<double>(m.experts_per_token);
  double more = rows * (static_cast<double>(m.n_expert) * wide + chosen * (8 + wide));
  if (const double received = received_rows(spread, experts); received > 0)
    more += received * (width_ * element_ + wide) +
            (received - rows * chosen) * kept * static_cast<double>(m.d_expert) / ranks(spread.cols) * element_;
  return dense + routed_ * more;
}
double LayerCosts::routed_bytes(const Spread& spread, AxisSet experts) const {
  if (routed_ == 0) return 0;
  const double pairs = rows_ / ranks(spread.rows) * static_cast<double>(config_.model.experts_per_token),
               received = received_rows(spread, experts);
  return (received > 0 ? std::max(pairs, received) + 2 * received : 2 * pairs) * width_ * element_;
}

double LayerCosts::bytes(const ModelSharding& layout, Gradients stored) const {
  const bool shares = stored == Gradients::arena;
  const auto wide = static_cast<double>(size_of(accumulator_of(compute_)));  // bytes per element of a gradient
  struct Kind {
    double layers, saved, gradients, live;  // the bytes are those of one layer
  };
  std::vector<Kind> kinds;
  double stays = 0;  // weights and states of all layers, and also gradients that have memory of their own
  int64_t whole_left = recomputed_layers(config_);  // the first ones; not yet in `kinds`
  for (const sharding::Layer& layer : layout.layers) {
    const double stream = stream_bytes(layer.stream);
    const auto inside = [&](bool rebuilds) {
      return attention_bytes(layer.attention, rebuilds) + hidden_bytes(layer.mlp, rebuilds, layer.experts);
    };
    const auto count = static_cast<double>(layer.count);
    double written = 0, moved = 0;
    for (const auto& [site, matrices] : matrices_) {
      const LinearSharding& l = layer.at(site);
      stays += count * site_bytes(site, l, layer.experts, stored);
      if (shares)
        for (const Matrix& matrix : matrices)
          written +=
              matrix.share * matrix.count * matrix.in * matrix.out / ranks(cut_of(matrix, l, layer.experts)) * wide;
      if (l.schedule == sharding::Transfer::ring) continue;  // holds only one block at a time
      const bool reads = reads_residual(site);
      const Spread& from = reads ? layer.stream : layer.inside(site);
      const Spread& to = reads ? layer.inside(site) : layer.stream;
      for (const Matrix& matrix : matrices) {
        const AxisSet experts = matrix.of_experts ? layer.experts : 0;
        const double block = matrix.count * matrix.in * matrix.out / ranks(l.contraction | l.cols | experts) * element_;
        const bool gathers = ranks(l.flat & ~experts) > 1;
        if (gathers && config_.parallel.cache_layers > 0) stays += count * matrix.share * block;
        double now = gathers ? 2 * block : 0;
        if (input_of(l) != placed(from)) now += rows_ * matrix.in / ranks(l.rows | l.contraction) * element_;
        if (partial_output_of(l) != placed(to)) now += rows_ * matrix.out / ranks(l.rows | l.cols) * element_;
        moved = std::max(moved, now);
      }
    }
    const double streams = has_parallel_residual(config_.model) ? 3 : 2;  // dy stays for attention
    const double gradients = rows_ * element_ *
                             (wide_ / ranks(layer.mlp.rows | layer.mlp.cols) +
                              streams * width_ / ranks(layer.stream.rows | layer.stream.cols));
    const double live = gradients + std::max(moved + routed_bytes(layer.mlp, layer.experts),
                                             exchange_bytes(layer.attention, layer.context));
    const int64_t whole = std::min(whole_left, layer.count);
    whole_left -= whole;
    if (whole > 0)
      kinds.push_back({static_cast<double>(whole), stream, written,
                       live + inside(false) + (streams_of(config_.model, false) - 1) * stream});
    if (whole < layer.count)
      kinds.push_back(
          {count - static_cast<double>(whole), kept_streams() * stream + inside(rebuilds()), written, live});
  }
  const sharding::VocabSpread& t = layout.table;
  // The head processes chunks of rows (parallel/vocab.h): their logits, and on a GPU also the gradients of the logits
  // if they have a different type.
  const bool mixed = compute_ == DType::bf16;
  const AxisSet near = (layout.head.rows | t.flat) & ~(t.vocab | t.width);
  const double logits =
      rows_ / ranks(near) * vocab_ / ranks(t.vocab) * static_cast<double>(size_of(accumulator_of(compute_)));
  const double chunk = (mixed && !cluster_.cpu ? 1.5 : 1) * std::min(logits, (mixed ? 256.0 : 96.0) * (1 << 20));
  const double gathered = ranks(t.flat) > 1 ? vocab_ * width_ / ranks(t.vocab | t.width) * element_ : 0;
  stays *= share_;
  const AxisSet cut = t.vocab | t.width | t.flat;
  stays += tables() * ((t.keep ? gathered : 0) + matrix_bytes(cut, width_, vocab_, tables_, stored));
  const double table = shares ? width_ * vocab_ / ranks(cut) * wide : 0;  // bytes of its gradient
  // The backward pass: the head, then the last layer of each kind and the first one.
  double saved = 0, written = table;
  for (Kind& kind : kinds) {
    kind.layers *= share_;
    saved += kind.layers * kind.saved;
  }
  stays += (in_flight_ - 1) * saved;
  double most = saved + written + (t.keep ? 0 : gathered) + chunk;
  for (auto kind = kinds.rbegin(); kind != kinds.rend(); ++kind) {
    most = std::max(most, saved + written + kind->gradients + kind->live);
    saved -= kind->layers * kind->saved;
    written += kind->layers * kind->gradients;
    most = std::max(most, saved + kind->saved + written + kind->live);
  }
  return stays + std::max(most, tables() * table + written - table);
}

}  // namespace trainer::plan
