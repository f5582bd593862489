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

/// The bias of attention and MLP is stored if it is not what `bias` implies.
Model with_uniform_bias(const Model& m) {
  Model uniform = m;
  uniform.attn_bias = m.bias.value() ? config::AttentionBias::all : config::AttentionBias::none;
  uniform.mlp_bias.reset();
  return uniform;
}

constexpr ModelKey kKeys[] = {
    {"arch", [](const Model& m) { return stored(config::family_of(m).name); }},
    {"n_layer", [](const Model& m) { return stored(m.n_layer); }},
    {"n_head", [](const Model& m) { return stored(m.n_head); }},
    {"n_kv_head", [](const Model& m) { return stored(m.n_kv_head); }},
    {"d_model", [](const Model& m) { return stored(m.d_model); }},
    {"d_ff", [](const Model& m) { return stored(m.d_ff); }},
    {"seq_len", [](const Model& m) { return stored(m.seq_len); }},
    {"tie_embeddings", [](const Model& m) { return stored(m.tie_embeddings.value()); }},
    {"bias", [](const Model& m) { return stored(m.bias.value()); }},
    {"norm_eps", [](const Model& m) { return stored(m.norm_eps); }},
    {"rope_theta", [](const Model& m) { return stored(m.rope_theta); }},
    {"head_dim", [](const Model& m) { return stored(head_size(m), attention_width(m) != m.d_model); }},
    {"rope_type",
     [](const Model& m) {
       return stored(config::kRopeNames[static_cast<size_t>(m.rope_type)], m.rope_type != RopeType::plain);
     },
     "default"},
    {"rope_factor", [](const Model& m) { return stored(m.rope_factor, m.rope_type != RopeType::plain); }},
    {"rope_original",
     [](const Model& m) {
       return stored(m.rope_original, m.rope_type == RopeType::llama3 || m.rope_type == RopeType::yarn);
     }},
    {"rope_low_freq", [](const Model& m) { return stored(m.rope_low_freq, m.rope_type == RopeType::llama3); }},
    {"rope_high_freq", [](const Model& m) { return stored(m.rope_high_freq, m.rope_type == RopeType::llama3); }},
    {"rope_beta_fast", [](const Model& m) { return stored(m.rope_beta_fast, m.rope_type == RopeType::yarn); }},
    {"rope_beta_slow", [](const Model& m) { return stored(m.rope_beta_slow, m.rope_type == RopeType::yarn); }},
    {"rope_attention",
     [](const Model& m) { return stored(m.rope_attention, m.rope_type == RopeType::yarn && m.rope_attention > 0); }},
    {"rope_truncate", [](const Model& m) { return stored(m.rope_truncate, m.rope_type == RopeType::yarn); }},
    {"qk_norm",
     [](const Model& m) {
       const config::QkNorm norm = query_key_norm(m);
       return stored(config::kQkNormNames[static_cast<size_t>(norm)], norm != config::QkNorm::none);
     }},
    {"norm_place", [](const Model& m) { return stored("post", has_post_norms(m)); }, "pre"},
    {"window", [](const Model& m) { return stored(m.window, m.window != 0); }, "0"},
    {"window_full_every", [](const Model& m) { return stored(m.window_full_every, m.window_full_every != 0); }, "0"},
    {"nope_every", [](const Model& m) { return stored(nope_interval(m), nope_interval(m) != 0); }, "0"},
    {"logit_softcap", [](const Model& m) { return stored(m.logit_softcap, m.logit_softcap != 0); }, "0"},
    {"attn_bias",
     [](const Model& m) {
       const config::AttentionBias bias = attention_bias(m);
       return stored(config::kAttentionBiasNames[static_cast<size_t>(bias)],
                     bias != attention_bias(with_uniform_bias(m)));
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
