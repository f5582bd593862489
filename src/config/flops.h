#pragma once
// Model FLOPs: the work that a step requires, regardless of what the program executes. A multiply-add counts as two.
#include <cstdint>
#include <string_view>

#include "config/model.h"

namespace trainer::config {

/// Numbers of weights that multiply a token in GEMMs: the linears of every block, of experts those that compute a
/// token, and the head. Biases, gains and the embedding look-up do not; a tied table counts once, as the head.
struct MatmulWeights {
  int64_t blocks = 0, head = 0;
  int64_t total() const { return blocks + head; }
};
/// `model` must be resolved: d_ff or d_expert > 0 (an internal error otherwise); n_kv_head 0 means n_head. `vocab` is
/// the vocabulary size without padding, since padding is not useful work.
MatmulWeights matmul_weights(const config::Model& model, int64_t vocab);

/// Returns the number of parameters of a resolved model: all weights, experts that do not compute a token included,
/// tables, biases and gains. `vocab` as above.
int64_t parameter_count(const config::Model& model, int64_t vocab);

/// FLOPs of one token, forward and backward.
struct FlopsPerToken {
  double matmul = 0;            // 6 · N_matmul
  double attention = 0;         // 12 · L · n_head · head_dim · seq_len: scores of every query with every key, not
                                // causal; min(window, seq_len) keys in layers with a window
  double attention_causal = 0;  // only the keys that a query sees: half of `attention` without windows
  double recomputed = 0;        // causal work that the chosen recomputation repeats
  double recomputed_attention = 0;  // the part of `recomputed` that attention does
  double full() const { return matmul + attention; }
  double causal() const { return matmul + attention_causal; }
  double hardware() const { return causal() + recomputed; }
};
/// `recomputed_layers`: recomputed_layers() of the configuration.
FlopsPerToken flops_per_token(const config::Model& model, int64_t vocab, int64_t recomputed_layers);
/// Returns the same for data of whose causal pairs of query and key only this share is visible, since documents are
/// separate. The full count does not change.
FlopsPerToken with_visible_share(FlopsPerToken flops, double share);
/// Returns the FLOPs of one token in a layer's forward pass: its weights, and the keys that a query sees.
double layer_flops(const config::Model& model, int64_t layer);
/// Returns the mean number of keys that a query sees in a layer, counted from 0: w − w²/(2·S) with a window of w <= S
/// keys, S/2 without.
double keys_in_layer(const config::Model& model, int64_t layer);
/// Returns the mean of keys_in_layer() over all layers.
double mean_visible_keys(const config::Model& model);
/// The definition of full(), for the log.
inline constexpr std::string_view kFlopsDefinition =
    "6 * N_matmul + 12 * n_layer * n_head * head_dim * seq_len per token (N_matmul: weights that multiply a "
    "token, head included; layers with a window count it instead of seq_len)";

/// Fractions of the dense peak; NaN if the peak is unknown (<= 0).
struct Utilisation {
  double mfu, mfu_causal, hfu;
};
/// `tokens_per_s` of one device, `peak_flops` of one device in FLOP/s.
Utilisation utilisation(const FlopsPerToken& flops, double tokens_per_s, double peak_flops);

}  // namespace trainer::config
