#include "config/flops.h"

#include <limits>

#include "base/error.h"
#include "config/block_linears.h"

namespace trainer::config {

/// Returns the number of weights that multiply a token in the linears of the first `layers` layers.
static int64_t block_weights(const config::Model& model, int64_t layers) {
  int64_t weights = 0;
  for (int64_t layer = 0; layer < layers; ++layer)
    for (const BlockLinear& linear : linears_of(model, layer)) weights += linear.active_weights();
  return weights;
}

MatmulWeights matmul_weights(const config::Model& model, int64_t vocab) {
  TRAINER_CHECK(
      model.n_layer > 0 && model.n_head > 0 && model.d_model > 0 && model.d_ff + model.d_expert > 0 && vocab >= 0,
      "model sizes must be resolved: n_layer {}, n_head {}, d_model {}, d_ff {}, d_expert {}, vocabulary {}",
      model.n_layer, model.n_head, model.d_model, model.d_ff, model.d_expert, vocab);
  return {.blocks = block_weights(model, model.n_layer), .head = model.d_model * vocab};
}

int64_t parameter_count(const config::Model& model, int64_t vocab) {
  const int64_t norm = model.d_model * (model.bias.value() ? 2 : 1);
  const int64_t tables =
      (model.tie_embeddings.value() ? 1 : 2) * vocab + (has_rope_positions(model) ? 0 : model.seq_len);
  const int64_t heads = query_key_norm(model) == QkNorm::full   ? attention_width(model) + key_width(model)
                        : query_key_norm(model) == QkNorm::head ? 2 * head_size(model)
                                                                : 0;
  int64_t count = tables * model.d_model + norm;
  for (int64_t layer = 0; layer < model.n_layer; ++layer) {
    count += 2 * norm + heads;
    for (const BlockLinear& linear : linears_of(model, layer))
      count += linear.out() * (linear.matrices * linear.in + (linear.bias ? 1 : 0));
  }
  return count;
}

double keys_in_layer(const config::Model& model, int64_t layer) {
  const auto length = static_cast<double>(model.seq_len);
  const int64_t window = window_of(model, layer);
  const double keys = window > 0 ? static_cast<double>(window) : length;
  return keys - keys * keys / (2 * length);
}

/// The same, summed over the first `layers` layers.
static double visible_keys(const config::Model& model, int64_t layers) {
  double sum = 0;
  for (int64_t layer = 0; layer < layers; ++layer) sum += keys_in_layer(model, layer);
  return sum;
}

double layer_flops(const config::Model& model, int64_t layer) {
  int64_t weights = 0;
  for (const BlockLinear& linear : linears_of(model, layer)) weights += linear.active_weights();
  return 2.0 * static_cast<double>(weights) +
         4.0 * static_cast<double>(attention_width(model)) * keys_in_layer(model, layer);
}

FlopsPerToken flops_per_token(const config::Model& model, int64_t vocab, int64_t recomputed_layers) {
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
  // Full recomputation repeats a block's forward pass, a third of its training work. Selective recomputation repeats
  // no GEMM. Attention's backward pass always recomputes scores from the log-sum-exp; those FLOPs do not count.
  flops.recomputed_attention = 4.0 * width * visible_keys(model, recomputed_layers);
  flops.recomputed = 2.0 * static_cast<double>(block_weights(model, recomputed_layers)) + flops.recomputed_attention;
  return flops;
}

FlopsPerToken with_visible_share(FlopsPerToken flops, double share) {
  flops.recomputed -= (1 - share) * flops.recomputed_attention;
  flops.recomputed_attention *= share;
  flops.attention_causal *= share;
  return flops;
}

double mean_visible_keys(const config::Model& model) {
  return visible_keys(model, model.n_layer) / static_cast<double>(model.n_layer);
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
