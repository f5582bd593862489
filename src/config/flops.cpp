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
  flops.attention = 12.0 * static_cast<double>(model.n_layer * attention_width(model) * model.seq_len);
  // Full recomputation repeats each block's forward pass, a third of its training work. Selective recomputation repeats
  // no GEMM. Attention's backward pass always recomputes scores from the log-sum-exp; those FLOPs do not count.
  if (recompute == config::Recompute::full) {
    flops.recomputed = 2.0 * static_cast<double>(weights.blocks) + flops.attention / 6;
  }
  return flops;
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
