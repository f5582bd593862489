#include "config/block_linears.h"

#include <cmath>

namespace trainer::config {

using sharding::Site;

int64_t BlockLinear::out() const {
  int64_t width = 0;
  for (const LinearPart& part : parts) width += part.width;
  return width;
}

std::vector<BlockLinear> linears_of(const Model& m, int64_t /*layer*/) {
  const int64_t queries = attention_width(m), keys = key_width(m), kv_heads = keys / head_size(m);
  const AttentionBias bias = attention_bias(m);
  // Pre-norm, linears that write the residual stream begin smaller, by √(2·layers).
  const double reads = m.init_std * m.init_hidden;
  const double writes = has_post_norms(m) ? reads : reads / std::sqrt(2.0 * static_cast<double>(m.n_layer));
  std::vector<LinearPart> up = {{"mlp.up", m.d_ff}};
  if (has_gated_mlp(m)) up.insert(up.begin(), {"mlp.gate", m.d_ff});
  return {{Site::qkv,
           m.d_model,
           {{"attn.q", queries, m.n_head}, {"attn.k", keys, kv_heads}, {"attn.v", keys, kv_heads}},
           bias != AttentionBias::none,
           reads},
          {Site::out, queries, {{"attn.o", m.d_model}}, bias == AttentionBias::all, writes},
          {Site::up, m.d_model, up, has_mlp_bias(m), reads},
          {Site::down, m.d_ff, {{"mlp.down", m.d_model}}, has_mlp_bias(m), writes}};
}

}  // namespace trainer::config
