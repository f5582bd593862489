#include "checkpoint/model_keys.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "base/format.h"
#include "config/families.h"

namespace trainer::checkpoint {
namespace {

using config::Model;
using config::RopeType;

using Stored = std::optional<std::string>;
Stored stored(const auto& value, bool used = true) { return used ? Stored(format("{}", value)) : std::nullopt; }

struct ModelKey {
  const char* name;
  Stored (*value)(const Model&);  // empty: the model does not use it
  const char* absent = nullptr;   // the value that a checkpoint without the key has; null: none
};

/// Returns the model with the biases of attention and MLP that `bias` implies.
Model with_uniform_bias(Model m) {
  m.attn_bias = m.bias.value() ? config::AttentionBias::all : config::AttentionBias::none;
  m.mlp_bias.reset();
  return m;
}

template <auto member>
Stored always(const Model& m) {
  return stored(m.*member);
}
template <auto member>
Stored unless_zero(const Model& m) {
  return stored(m.*member, m.*member != 0);
}
template <auto member, RopeType... types>
Stored with_rope(const Model& m) {
  return stored(m.*member, ((m.rope_type == types) || ...));
}

constexpr ModelKey kKeys[] = {
    {"arch", [](const Model& m) { return stored(config::family_of(m).name); }},
    {"n_layer", always<&Model::n_layer>},
    {"n_head", always<&Model::n_head>},
    {"n_kv_head", always<&Model::n_kv_head>},
    {"d_model", always<&Model::d_model>},
    {"d_ff", always<&Model::d_ff>},
    {"seq_len", always<&Model::seq_len>},
    {"tie_embeddings", [](const Model& m) { return stored(m.tie_embeddings.value()); }},
    {"bias", [](const Model& m) { return stored(m.bias.value()); }},
    {"norm_eps", always<&Model::norm_eps>},
    {"rope_theta", always<&Model::rope_theta>},
    {"head_dim", [](const Model& m) { return stored(head_size(m), attention_width(m) != m.d_model); }},
    {"activation",
     [](const Model& m) {
       const config::Activation act = activation_of(m);
       return stored(config::kActivationNames[static_cast<size_t>(act)], act != config::usual_activation(m.family.mlp));
     }},
    {"rotary_dim",
     [](const Model& m) { return stored(rotary_size(m), has_rope_positions(m) && rotary_size(m) != head_size(m)); }},
    {"rope_type",
     [](const Model& m) {
       return stored(config::kRopeNames[static_cast<size_t>(m.rope_type)], m.rope_type != RopeType::plain);
     },
     "default"},
    {"rope_factor", with_rope<&Model::rope_factor, RopeType::linear, RopeType::llama3, RopeType::yarn>},
    {"rope_original", with_rope<&Model::rope_original, RopeType::llama3, RopeType::yarn>},
    {"rope_low_freq", with_rope<&Model::rope_low_freq, RopeType::llama3>},
    {"rope_high_freq", with_rope<&Model::rope_high_freq, RopeType::llama3>},
    {"rope_beta_fast", with_rope<&Model::rope_beta_fast, RopeType::yarn>},
    {"rope_beta_slow", with_rope<&Model::rope_beta_slow, RopeType::yarn>},
    {"rope_attention",
     [](const Model& m) { return stored(m.rope_attention, m.rope_type == RopeType::yarn && m.rope_attention > 0); }},
    {"rope_truncate", with_rope<&Model::rope_truncate, RopeType::yarn>},
    {"qk_norm",
     [](const Model& m) {
       const config::QkNorm norm = query_key_norm(m);
       return stored(config::kQkNormNames[static_cast<size_t>(norm)], norm != config::QkNorm::none);
     }},
    {"norm_place",
     [](const Model& m) {
       return stored(config::kNormPlaceNames[static_cast<size_t>(place_of_norms(m))], has_norms_after(m));
     },
     "pre"},
    {"attn_scalar",
     [](const Model& m) { return stored(score_scalar(m), score_scalar(m) != static_cast<double>(head_size(m))); }},
    {"parallel_residual", [](const Model& m) { return stored("true", has_parallel_residual(m)); }, "false"},
    {"window", unless_zero<&Model::window>, "0"},
    {"window_full_every", unless_zero<&Model::window_full_every>, "0"},
    {"window_rope_theta", unless_zero<&Model::window_rope_theta>, "0"},
    {"nope_every", [](const Model& m) { return stored(nope_interval(m), nope_interval(m) != 0); }, "0"},
    {"logit_softcap", unless_zero<&Model::logit_softcap>, "0"},
    {"n_expert", unless_zero<&Model::n_expert>, "0"},
    {"experts_per_token", [](const Model& m) { return stored(m.experts_per_token, m.n_expert > 0); }},
    {"d_expert", unless_zero<&Model::d_expert>},
    {"d_shared", unless_zero<&Model::d_shared>, "0"},
    {"moe_every", [](const Model& m) { return stored(m.moe_every, m.moe_every != 1); }, "1"},
    {"norm_topk", [](const Model& m) { return stored(normalizes_topk(m), m.n_expert > 0); }},
    {"attn_bias",
     [](const Model& m) {
       const config::AttentionBias bias = attention_bias(m), implied = attention_bias(with_uniform_bias(m));
       return stored(config::kAttentionBiasNames[static_cast<size_t>(bias)], bias != implied);
     }},
    {"mlp_bias",
     [](const Model& m) { return stored(has_mlp_bias(m), has_mlp_bias(m) != has_mlp_bias(with_uniform_bias(m))); }},
};

}  // namespace

std::map<std::string, std::string> model_keys(const Model& model, int64_t vocab) {
  std::map<std::string, std::string> keys = {{"vocab_size", format("{}", vocab)}};
  for (const ModelKey& key : kKeys)
    if (Stored value = key.value(model)) keys[key.name] = std::move(*value);
  return keys;
}

const char* value_of_absent_key(std::string_view name) {
  const auto* key = std::ranges::find(kKeys, name, &ModelKey::name);
  return key == std::end(kKeys) ? nullptr : key->absent;
}

}  // namespace trainer::checkpoint
