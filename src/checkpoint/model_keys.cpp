#include "checkpoint/model_keys.h"

#include "base/format.h"

namespace trainer::checkpoint {

std::map<std::string, std::string> model_keys(const config::Model& m, int64_t vocab) {
  return {{"arch", config::kArchNames[static_cast<size_t>(m.arch)]},
          {"n_layer", format("{}", m.n_layer)},
          {"n_head", format("{}", m.n_head)},
          {"n_kv_head", format("{}", m.n_kv_head)},
          {"d_model", format("{}", m.d_model)},
          {"d_ff", format("{}", m.d_ff)},
          {"seq_len", format("{}", m.seq_len)},
          {"tie_embeddings", format("{}", m.tie_embeddings.value())},
          {"bias", format("{}", m.bias.value())},
          {"norm_eps", format("{}", m.norm_eps)},
          {"rope_theta", format("{}", m.rope_theta)},
          {"vocab_size", format("{}", vocab)}};
}

}  // namespace trainer::checkpoint
