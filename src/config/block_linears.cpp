#include "config/block_linears.h"

#include <cmath>

namespace trainer::config {

using sharding::Site;

int64_t BlockLinear::out() const {
  int64_t width = 0;
  for (const LinearPart& part : parts) width += part.width;
  return width;
}

std::vector<BlockLinear> linears_of(const Model& m, int64_t layer) {
  const int64_t queries = attention_width(m), keys = key_width(m), kv_heads = keys / head_size(m);
  const AttentionBias bias = attention_bias(m);
  // Pre-norm, linears that write the residual stream begin smaller, by √(2·layers).
  const double reads = m.init_std * m.init_hidden;
  const double writes = has_norms_after(m) ? reads : reads / std::sqrt(2.0 * static_cast<double>(m.n_layer));
  std::vector<BlockLinear> all = {
      {Site::qkv,
       m.d_model,
       {{"attn.q", queries, m.n_head}, {"attn.k", keys, kv_heads}, {"attn.v", keys, kv_heads}},
       bias != AttentionBias::none,
       reads},
      {Site::out, queries, {{"attn.o", m.d_model}}, bias == AttentionBias::all, writes}};
  const auto mlp = [&](const std::string& prefix, int64_t width, Role role, int64_t matrices, int64_t active) {
    std::vector<LinearPart> up = {{prefix + "up", width}};
    if (has_gated_mlp(m)) up.insert(up.begin(), {prefix + "gate", width});
    const bool biased = role == Role::dense && has_mlp_bias(m);
    all.push_back({Site::up, m.d_model, up, biased, reads, role, matrices, active});
    all.push_back({Site::down, width, {{prefix + "down", m.d_model}}, biased, writes, role, matrices, active});
  };
  const auto vectors = [&](const char* name, int64_t width, Role role) {
    all.push_back({Site::up, m.d_model, {{name, width}}, false, reads, role, 1, 1, /*whole_matrix=*/false});
  };
  if (!is_moe_layer(m, layer)) {
    mlp("mlp.", m.d_ff, Role::dense, 1, 1);
    return all;
  }
  vectors("mlp.router", m.n_expert, Role::router);
  mlp("mlp.experts.", m.d_expert, Role::experts, m.n_expert, m.experts_per_token);
  if (m.d_shared > 0) {
    mlp("mlp.shared.", m.d_shared, Role::shared, 1, 1);
    vectors("mlp.shared_gate", 1, Role::shared_gate);
  }
  return all;
}

}  // namespace trainer::config
