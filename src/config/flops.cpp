#include "config/flops.h"

#include <limits>

#include "base/error.h"

namespace trainer::config {

MatmulWeights matmul_weights(const config::Model& model, int64_t vocab) {
  TRAINER_CHECK(model.n_layer > 0 && model.n_head > 0 && model.d_model > 0 && model.d_ff > 0 && vocab > 0,
                "model sizes must be resolved: n_layer {}, n_head {}, d_model {}, d_ff {}, vocabulary {}",
                model.n_layer, model.n_head, model.d_model, model.d_ff, vocab);
  const int64_t attention = 2 * model.d_model * (attention_width(model) + key_width(model));  // wq and wo; wk and wv
  const int64_t mlp_matrices = is_llama_like(model) ? 3 : 2;                                  // gate, up, down
  const int64_t mlp = mlp_matrices * model.d_model * model.d_ff;
  return {.blocks = model.n_layer * (attention + mlp), .head = model.d_model * vocab};
}

FlopsPerToken flops_per_token(const config::Model& model, int64_t vocab, config::Recompute recompute) {
  const MatmulWeights weights = matmul_weights(model, vocab);
  FlopsPerToken flops;
  flops.matmul = 6.0 * static_cast<double>(weights.total());
  int64_t keys = 0;  // over all layers
  for (int64_t layer = 0; layer < model.n_layer; ++layer) {
    const int64_t window = window_of(model, layer);
    keys += window > 0 ? window : model.seq_len;
  }
  const auto width = static_cast<double>(attention_width(model));
  flops.attention = 12.0 * static_cast<double>(keys * attention_width(model));
  flops.attention_causal = 12.0 * width * static_cast<double>(model.n_layer) * mean_visible_keys(model);
  // Full recomputation repeats each block's forward pass, a third of its training work. Selective recomputation repeats
  // no GEMM. Attention's backward pass always recomputes scores from the log-sum-exp; those FLOPs do not count.
  if (recompute == config::Recompute::full) {
    flops.recomputed = 2.0 * static_cast<double>(weights.blocks) + flops.attention_causal / 3;
  }
  return flops;
}

FlopsPerToken with_visible_share(FlopsPerToken flops, double share, config::Recompute recompute) {
  const double hidden = (1 - share) * flops.attention_causal;
  if (recompute == config::Recompute::full) flops.recomputed -= hidden / 3;
  flops.attention_causal -= hidden;
  return flops;
}

double mean_visible_keys(const config::Model& model) {
  const auto length = static_cast<double>(model.seq_len);
  double sum = 0;
  for (int64_t layer = 0; layer < model.n_layer; ++layer) {
    const int64_t window = window_of(model, layer);
    const double keys = window > 0 ? static_cast<double>(window) : length;
    sum += keys - keys * keys / (2 * length);
  }
  return sum / static_cast<double>(model.n_layer);
}

Utilisation utilisation(const FlopsPerToken& flops, double tokens_per_s, double peak_flops) {
  if (!(peak_flops > 0)) {
    constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
    return {kUnknown, kUnknown, kUnknown};
  }
  return {flops.full() * tokens_per_s / peak_flops, flops.causal() * tokens_per_s / peak_flops,
          flops.hardware() * tokens_per_s / peak_flops};
}

}  // namespace trainer::config
