#include "checkpoint/model_keys.h"

#include "base/format.h"
#include "config/families.h"

namespace trainer::checkpoint {
namespace {

void add_rope(const config::Model& m, std::map<std::string, std::string>& keys) {
  using config::RopeType;
  if (m.rope_type == RopeType::plain) return;
  keys["rope_type"] = config::kRopeNames[static_cast<size_t>(m.rope_type)];
  keys["rope_factor"] = format("{}", m.rope_factor);
  if (m.rope_type == RopeType::linear) return;
  keys["rope_original"] = format("{}", m.rope_original);
  if (m.rope_type == RopeType::llama3) {
    keys["rope_low_freq"] = format("{}", m.rope_low_freq);
    keys["rope_high_freq"] = format("{}", m.rope_high_freq);
    return;
  }
  keys["rope_beta_fast"] = format("{}", m.rope_beta_fast);
  keys["rope_beta_slow"] = format("{}", m.rope_beta_slow);
  if (m.rope_attention > 0) keys["rope_attention"] = format("{}", m.rope_attention);
  keys["rope_truncate"] = format("{}", m.rope_truncate);
}

}  // namespace

std::map<std::string, std::string> model_keys(const config::Model& m, int64_t vocab) {
  std::map<std::string, std::string> keys = {
      {"arch", config::family_of(m).name},        {"n_layer", format("{}", m.n_layer)},
      {"n_head", format("{}", m.n_head)},         {"n_kv_head", format("{}", m.n_kv_head)},
      {"d_model", format("{}", m.d_model)},       {"d_ff", format("{}", m.d_ff)},
      {"seq_len", format("{}", m.seq_len)},       {"tie_embeddings", format("{}", m.tie_embeddings.value())},
      {"bias", format("{}", m.bias.value())},     {"norm_eps", format("{}", m.norm_eps)},
      {"rope_theta", format("{}", m.rope_theta)}, {"vocab_size", format("{}", vocab)}};
  if (attention_width(m) != m.d_model) keys["head_dim"] = format("{}", head_size(m));
  add_rope(m, keys);
  if (query_key_norm(m) != config::QkNorm::none)
    keys["qk_norm"] = config::kQkNormNames[static_cast<size_t>(query_key_norm(m))];
  if (has_post_norms(m)) keys["norm_place"] = "post";
  if (m.window != 0) keys["window"] = format("{}", m.window);
  if (m.window_full_every != 0) keys["window_full_every"] = format("{}", m.window_full_every);
  if (nope_interval(m) != 0) keys["nope_every"] = format("{}", nope_interval(m));
  if (m.logit_softcap != 0) keys["logit_softcap"] = format("{}", m.logit_softcap);
  config::Model uniform = m;
  uniform.attn_bias = m.bias.value() ? config::AttentionBias::all : config::AttentionBias::none;
  uniform.mlp_bias.reset();
  if (attention_bias(m) != *uniform.attn_bias)
    keys["attn_bias"] = config::kAttentionBiasNames[static_cast<size_t>(attention_bias(m))];
  if (has_mlp_bias(m) != has_mlp_bias(uniform)) keys["mlp_bias"] = format("{}", has_mlp_bias(m));
  return keys;
}

const std::map<std::string, std::string>& values_of_absent_keys() {
  static const std::map<std::string, std::string> values = {{"rope_type", "default"}, {"norm_place", "pre"},
                                                            {"window", "0"},          {"window_full_every", "0"},
                                                            {"nope_every", "0"},      {"logit_softcap", "0"}};
  return values;
}

}  // namespace trainer::checkpoint
