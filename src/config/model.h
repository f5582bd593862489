#pragma once
// The section [model].
#include <cstdint>
#include <optional>
#include <string>

namespace trainer::config {

enum class Arch {
  gpt2,
  llama,
  mistral,
  qwen2,
  qwen3,
  smollm3,
  olmo2,
  mixtral,
  olmoe,
  qwen2_moe,
  qwen3_moe,
  gpt_neox,
  olmo3,
  gemma3
};
enum class AttentionBias { none, qkv, all };
enum class QkNorm { none, head, full };
enum class NormPlace { pre, post, both };
enum class NormKind { layer, rms };
enum class Positions { learned, rope };
enum class MlpKind { plain, gated };  // down(act(up(x))), down(act(gate(x)) ∘ up(x))
enum class Activation { gelu, gelu_erf, silu };
enum class RopeType { plain, linear, llama3, yarn };

/// A base of the layers with a window: rope_theta, if the RoPE of the others is scaled, else none of their own.
inline constexpr double kUnscaledBase = -1;

/// The facts by which the models of a family differ from those of another.
struct FamilyFacts {
  NormKind norm = NormKind::layer;
  Positions positions = Positions::learned;
  MlpKind mlp = MlpKind::plain;
  // Values of keys that are not set:
  std::optional<Activation> activation = {};  // unset: silu with a gate, else gelu
  bool bias = false, tied = false;
  AttentionBias attn_bias = AttentionBias::none;  // without bias; with bias all linears of attention have one
  QkNorm qk_norm = QkNorm::none;
  NormPlace norm_place = NormPlace::pre;
  double gain_offset = 0;         // gains of norms are stored less this
  bool scales_embedding = false;  // rows of the embedding times √d_model, rounded to the compute type
  bool parallel_residual = false;
  int64_t nope_every = 0;
  double norm_eps = 1e-5, rope_theta = 1e4;
  int64_t rotary_part = 1;  // RoPE rotates 1/rotary_part of a head's features
  int64_t window = 0, window_full_every = 0;
  double window_rope_theta = 0;  // with a window
  bool experts = false;          // the MLPs are mixtures of experts
  bool norm_topk = false;
  bool shared_expert = false;  // a shared expert may be there
};

struct Model {
  Arch arch = Arch::gpt2;  // only config/ and huggingface/ read it; `family` contains what follows from it
  FamilyFacts family;      // set by resolve(): those of arch (config/families.h)
  int64_t n_layer = 0, n_head = 0, n_kv_head = 0 /* 0: n_head */, d_model = 0, d_ff = 0 /* 0: by family */, seq_len = 0;
  int64_t head_dim = 0;                      // 0: d_model / n_head; head_size() returns the effective value
  int64_t rotary_dim = 0;                    // 0: by family; rotary_size() returns the effective value
  std::optional<bool> tie_embeddings, bias;  // default depends on the family
  double norm_eps = 0, rope_theta = 0, dropout = 0, init_std = 0;
  int64_t vocab_multiple = 0;  // 0: 128
  std::string init_from;
  RopeType rope_type = RopeType::plain;
  double rope_factor = 0;                          // linear, llama3 and yarn
  int64_t rope_original = 0;                       // llama3 and yarn: context length before scaling, in tokens
  double rope_low_freq = 1, rope_high_freq = 4;    // llama3
  double rope_beta_fast = 32, rope_beta_slow = 1;  // yarn, as are the next two
  double rope_attention = 0;                       // 0: derived from rope_factor
  bool rope_truncate = true;
  std::optional<Activation> activation;    // unset: the family decides; activation_of() returns the effective value
  std::optional<AttentionBias> attn_bias;  // if this or one of the next two is unset, the family decides: see below
  std::optional<bool> mlp_bias;
  std::optional<QkNorm> qk_norm;
  std::optional<NormPlace> norm_place;    // unset: the family decides; place_of_norms() returns the effective value
  std::optional<bool> parallel_residual;  // unset: the family decides; see has_parallel_residual()
  int64_t max_positions = 0;              // 0: seq_len
  // Keys that a row sees at most, 0: all earlier ones; each layer whose number is a multiple of window_full_every sees
  // all of them. window_of() returns a layer's window.
  int64_t window = 0, window_full_every = 0;
  double attn_scalar = 0;             // 0: head_dim; score_scalar() returns the effective value
  double window_rope_theta = 0;       // base of the RoPE, never scaled, of layers with a window; 0: that of all layers
  double logit_softcap = 0;           // 0: none
  std::optional<int64_t> nope_every;  // unset: the family decides; nope_interval() returns the effective value
  // Mixtures of experts: n_expert experts of width d_expert, of which experts_per_token compute each token, and a
  // shared expert of width d_shared, which computes every token (0: none). Layers moe_every, 2·moe_every, …, counted
  // from 1, have them; all other layers have a dense MLP of width d_ff.
  int64_t n_expert = 0 /* 0: a dense model */, experts_per_token = 2, d_expert = 0, d_shared = 0, moe_every = 1;
  std::optional<bool> norm_topk;  // unset: the family decides; normalizes_topk() returns the effective value
  // Factors of init_std for the blocks' matrices and for a head that is not tied; set by resolve() for muP.
  double init_hidden = 1, init_head = 1;
};

/// The names of Activation, in order.
inline constexpr const char* kActivationNames[] = {"gelu", "gelu_erf", "silu"};
/// The names of AttentionBias, in order.
inline constexpr const char* kAttentionBiasNames[] = {"none", "qkv", "all"};
/// The names of QkNorm, in order.
inline constexpr const char* kQkNormNames[] = {"none", "head", "full"};
/// The names of NormPlace, in order.
inline constexpr const char* kNormPlaceNames[] = {"pre", "post", "both"};
/// The names of RopeType, in order.
inline constexpr const char* kRopeNames[] = {"default", "linear", "llama3", "yarn"};
inline bool has_rope_positions(const Model& model) { return model.family.positions == Positions::rope; }
inline bool has_gated_mlp(const Model& model) { return model.family.mlp == MlpKind::gated; }
/// Returns the activation that most models with this kind of MLP have.
inline Activation usual_activation(MlpKind mlp) { return mlp == MlpKind::gated ? Activation::silu : Activation::gelu; }
inline Activation activation_of(const FamilyFacts& facts) {
  return facts.activation.value_or(usual_activation(facts.mlp));
}
inline Activation activation_of(const Model& model) { return model.activation.value_or(activation_of(model.family)); }
/// Returns the number of features of one attention head.
inline int64_t head_size(const Model& model) {
  return model.head_dim > 0 ? model.head_dim : model.d_model / model.n_head;
}
/// Returns the number of features of a head, its first ones, that RoPE rotates.
inline int64_t rotary_size(const Model& model) {
  if (model.rotary_dim > 0) return model.rotary_dim;
  const int64_t part = head_size(model) / model.family.rotary_part;
  return model.family.rotary_part == 1 ? part : part < 2 ? 2 : part / 2 * 2;
}
/// Returns which linears of attention have biases in a resolved model.
inline AttentionBias attention_bias(const Model& model) {
  return model.attn_bias.value_or(model.bias.value_or(model.family.bias) ? AttentionBias::all : model.family.attn_bias);
}
inline bool has_mlp_bias(const Model& model) { return model.mlp_bias.value_or(model.bias.value_or(model.family.bias)); }
/// Returns whether a layer, counted from 0, has a sliding window.
inline bool has_window(const Model& model, int64_t layer) {
  const bool full = model.window_full_every > 0 && (layer + 1) % model.window_full_every == 0;
  return model.window > 0 && !full;
}
/// Returns how many keys a row sees at most in a layer, counted from 0; 0: all earlier ones.
inline int64_t window_of(const Model& model, int64_t layer) {
  return !has_window(model, layer) || model.window >= model.seq_len ? 0 : model.window;
}
/// Returns n if layers n, 2n, …, counted from 1, have no RoPE; 0 if all have it.
inline int64_t nope_interval(const Model& model) { return model.nope_every.value_or(model.family.nope_every); }
/// Returns whether queries and keys are rotated in a layer, counted from 0.
inline bool has_rope(const Model& model, int64_t layer) {
  const int64_t every = nope_interval(model);
  return has_rope_positions(model) && (every == 0 || (layer + 1) % every != 0);
}
/// Returns whether a layer, counted from 0, has the RoPE of layers with a window. Does not depend on seq_len.
inline bool has_window_rope(const Model& model, int64_t layer) {
  return model.window_rope_theta > 0 && has_window(model, layer);
}
/// Returns the norms that are applied to queries and keys.
inline QkNorm query_key_norm(const Model& model) { return model.qk_norm.value_or(model.family.qk_norm); }
inline NormPlace place_of_norms(const Model& model) { return model.norm_place.value_or(model.family.norm_place); }
/// Return whether norms are applied to the inputs of attention and MLP, and to their outputs.
inline bool has_norms_before(const Model& model) { return place_of_norms(model) != NormPlace::post; }
inline bool has_norms_after(const Model& model) { return place_of_norms(model) != NormPlace::pre; }
/// Returns the number by whose square root attention scores are divided.
inline double score_scalar(const Model& model) {
  return model.attn_scalar > 0 ? model.attn_scalar : static_cast<double>(head_size(model));
}
/// True if attention and MLP read the same x: x + attention(norm1(x)) + mlp(norm2(x)).
inline bool has_parallel_residual(const Model& model) {
  return model.parallel_residual.value_or(model.family.parallel_residual);
}
/// Returns whether the MLP of a layer, counted from 0, is a mixture of experts.
inline bool is_moe_layer(const Model& model, int64_t layer) {
  return model.n_expert > 0 && (layer + 1) % model.moe_every == 0;
}
/// Returns the number of layers with experts.
inline int64_t moe_layers(const Model& model) { return model.n_expert > 0 ? model.n_layer / model.moe_every : 0; }
inline bool has_dense_layers(const Model& model) { return moe_layers(model) < model.n_layer; }
/// Returns whether the weights of the experts that compute a token sum to 1.
inline bool normalizes_topk(const Model& model) { return model.norm_topk.value_or(model.family.norm_topk); }
/// Returns the total width of the query heads, which is also the width of the attention output.
inline int64_t attention_width(const Model& model) { return model.n_head * head_size(model); }
/// Returns the total width of the key heads, which equals that of the value heads.
inline int64_t key_width(const Model& model) {
  return (model.n_kv_head > 0 ? model.n_kv_head : model.n_head) * head_size(model);
}

}  // namespace trainer::config
