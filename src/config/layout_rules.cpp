#include "config/layout_rules.h"

#include <algorithm>

#include "base/error.h"

namespace trainer::config {
namespace {

int64_t kv_heads_of(const Model& model) { return model.n_kv_head > 0 ? model.n_kv_head : model.n_head; }

/// Of Megatron-1D (parallel/megatron1d.h), but for the token rows.
bool tensor_fits(const Model& m, int64_t tensor) {
  const int64_t kv = kv_heads_of(m);
  return m.n_head % tensor == 0 && m.d_ff % tensor == 0 && m.vocab_multiple % tensor == 0 &&
         (kv % tensor == 0 || tensor % kv == 0);
}

/// "; tensor = 4 or 6 fits": the nearest on both sides.
std::string nearest_tensor(const Model& m, int64_t tensor) {
  int64_t below = std::min(tensor, m.n_head), above = tensor + 1;
  while (below > 1 && !tensor_fits(m, below)) --below;
  while (above <= m.n_head && !tensor_fits(m, above)) ++above;
  return above <= m.n_head ? format("; tensor = {} or {} fits", below, above) : format("; tensor = {} fits", below);
}

std::vector<LayoutRule> megatron_rules(const Config& config) {
  const Model& m = config.model;
  const int64_t tensor = config.parallel.tensor, kv = kv_heads_of(m), rows = config.train.micro_batch * m.seq_len;
  const std::string nearest = nearest_tensor(m, tensor);
  return {
      {m.n_head % tensor == 0,
       {"parallel.tensor", "model.n_head"},
       format("n_head = {} heads do not divide over tensor = {} ranks{}", m.n_head, tensor, nearest)},
      {m.d_ff % tensor == 0,
       {"parallel.tensor", "model.d_ff"},
       format("d_ff = {} does not divide over tensor = {} ranks{}", m.d_ff, tensor, nearest)},
      {kv % tensor == 0 || tensor % kv == 0,
       {"parallel.tensor", "model.n_kv_head"},
       format("n_kv_head = {} heads neither divide over tensor = {} ranks nor can as many ranks share each of them{}",
              kv, tensor, nearest)},
      {m.vocab_multiple % tensor == 0,
       {"parallel.tensor", "model.vocab_multiple"},
       format("vocab_multiple = {} does not divide over tensor = {} ranks{}", m.vocab_multiple, tensor, nearest)},
      {!config.parallel.sequence_parallel || rows % tensor == 0,
       {"parallel.sequence_parallel", "parallel.tensor", "train.micro_batch", "model.seq_len"},
       format("micro_batch x seq_len = {} x {} token rows do not divide over tensor = {} ranks; "
              "sequence_parallel = false keeps them whole",
              config.train.micro_batch, m.seq_len, tensor)},
  };
}

}  // namespace

int64_t ranks_of_replica(const Config& config) { return config.parallel.tensor; }

std::vector<LayoutRule> layout_rules(const Config& config) {
  if (config.parallel.strategy == "megatron-1d") return megatron_rules(config);
  return {};
}

bool layout_fits(const Config& config) {
  return std::ranges::all_of(layout_rules(config), [](const LayoutRule& rule) { return rule.holds; });
}

void require_layout(const Config& config) {
  for (const LayoutRule& rule : layout_rules(config))
    if (!rule.holds) throw Error(Code::config, rule.text);
}

}  // namespace trainer::config
