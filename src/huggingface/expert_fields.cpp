#include "huggingface/expert_fields.h"

#include "base/log.h"

namespace trainer::huggingface {

using config::ExpertFields;

namespace {

/// Returns the field for the number of experts. Files of other versions may have that of the other families.
const char* count_field(bool mixtral) { return mixtral ? "num_local_experts" : "num_experts"; }

/// Reads moe_every: decoder_sparse_step, or what equals it and mlp_only_layers together.
int64_t read_interval(const Fields& fields, int64_t layers) {
  constexpr const char *kStep = "decoder_sparse_step", *kDense = "mlp_only_layers";
  const int64_t step = fields.size(kStep, 1);
  if (step > layers)
    fields.refuse(kStep,
                  format("{}, so that no layer has experts; expected at most num_hidden_layers = {}", step, layers));
  const json* const given = fields.find(kDense);
  const json list = given == nullptr ? json::array() : *given;
  if (!list.is_array()) fields.refuse(kDense, format("{}, expected a list", json_text(list)));
  std::vector<bool> dense(static_cast<size_t>(layers));
  for (const json& layer : list) {
    if (!layer.is_number_unsigned() || layer.get<uint64_t>() >= dense.size())
      fields.refuse(kDense, format("{}, expected layers from 0 to {}", json_text(layer), layers - 1));
    dense[layer.get<size_t>()] = true;
  }
  const auto refuse = [&](const std::string& found) {
    fields.refuse(kDense, format("{}, so that {} experts; this program supports them in all layers or in every n-th",
                                 json_text(list), found));
  };
  int64_t every = 0;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const bool has_experts = (layer + 1) % step == 0 && !dense[static_cast<size_t>(layer)];
    if (has_experts && every == 0) every = layer + 1;
    if (has_experts != (every > 0 && (layer + 1) % every == 0))
      refuse(format("layer {} {}", layer, has_experts ? "has" : "has no"));
  }
  if (every == 0) refuse("no layer has");
  return every;
}

}  // namespace

void require_experts(const config::Model& m, const config::Family& family) {
  const ExpertFields kind = family.hugging_face.experts;
  const auto refuse = [&](const char* key, const std::string& value, const char* reason) {
    throw Error(Code::checkpoint, format("model.{} = {} cannot be exported: Hugging Face's {} {}", key, value,
                                         family.hugging_face.model_type, reason));
  };
  if (m.moe_every > 1 && kind != ExpertFields::qwen)
    refuse("moe_every", format("{}", m.moe_every), "has experts in all layers");
  if (!normalizes_topk(m) && kind == ExpertFields::mixtral) refuse("norm_topk", "false", "always normalizes");
  if (kind == ExpertFields::olmoe && attention_width(m) != m.d_model)
    refuse("head_dim", format("{}", m.head_dim), "normalizes queries of d_model features: n_head * head_dim = d_model");
  if (family.facts.shared_expert && m.d_shared == 0) refuse("d_shared", "0", "always has a shared expert");
}

void add_experts(const config::Model& m, ExpertFields kind, ordered_json& out) {
  if (kind == ExpertFields::none || kind == ExpertFields::qwen)
    out["intermediate_size"] = m.d_ff > 0 ? m.d_ff : m.d_expert;
  if (kind == ExpertFields::none) return;
  if (kind == ExpertFields::qwen) {
    out["moe_intermediate_size"] = m.d_expert;
    if (m.d_shared > 0) out["shared_expert_intermediate_size"] = m.d_shared;
    out["decoder_sparse_step"] = m.moe_every;
    out["mlp_only_layers"] = ordered_json::array();
  } else {
    out["intermediate_size"] = m.d_expert;
  }
  out[count_field(kind == ExpertFields::mixtral)] = m.n_expert;
  out["num_experts_per_tok"] = m.experts_per_token;
  if (kind != ExpertFields::mixtral) out["norm_topk_prob"] = normalizes_topk(m);
  out["output_router_logits"] = false;
}

void read_experts(const Fields& fields, const config::Family& family, int64_t layers, Keys& keys) {
  const ExpertFields kind = family.hugging_face.experts;
  if (kind == ExpertFields::none) return keys.add("d_ff", fields.size("intermediate_size"));
  const char *const own = count_field(kind == ExpertFields::mixtral),
                    *const other = count_field(kind != ExpertFields::mixtral),
                    *const count = fields.find(own) == nullptr && fields.find(other) != nullptr ? other : own;
  const int64_t chosen = fields.size("num_experts_per_tok"), experts = fields.size(count);
  if (const int64_t same = fields.size(other, experts); same != experts)
    fields.refuse(other, format("{}, but {} is {}; remove the wrong one", same, own, experts));
  constexpr int64_t kMost = 1 << 18;  // each has tensors of its own, all of which are listed
  if (experts > kMost / layers)
    fields.refuse(count, format("{} in each of {} layers; this program supports {} in all layers together", experts,
                                layers, kMost));
  keys.add("n_expert", experts);
  keys.add("experts_per_token", chosen);
  if (kind == ExpertFields::qwen) {
    keys.add("d_expert", fields.size("moe_intermediate_size"));
    const int64_t every = read_interval(fields, layers);
    if (every > 1) {
      keys.add("moe_every", every);
      keys.add("d_ff", fields.size("intermediate_size"));
    }
    if (family.facts.shared_expert) keys.add("d_shared", fields.size("shared_expert_intermediate_size"));
    fields.demand("qkv_bias", true);
  } else {
    keys.add("d_expert", fields.size("intermediate_size"));
  }
  if (kind != ExpertFields::mixtral) keys.add("norm_topk", fields.flag("norm_topk_prob", false));
  fields.demand("router_jitter_noise", 0.0);
  fields.demand_absent("clip_qkv");
  if (const double balance = fields.number("router_aux_loss_coef", 0); balance != 0)
    log::info("router_aux_loss_coef = {:g}: train.balance_loss = {:g} has the same scale", balance,
              balance * static_cast<double>(chosen));
}

}  // namespace trainer::huggingface
