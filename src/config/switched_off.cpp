#include "config/switched_off.h"

#include "base/format.h"
#include "base/log.h"
#include "config/context.h"
#include "config/families.h"
#include "config/keys.h"
#include "config/mistakes.h"

namespace trainer::config {

void warn_of_switched_off_keys(const Config& c) {
  const bool validates = !c.data.val.empty() || !c.data.validation.empty() || c.data.val_fraction > 0;
  const bool scaled = c.model.rope_type != RopeType::plain, llama3 = c.model.rope_type == RopeType::llama3,
             yarn = c.model.rope_type == RopeType::yarn;
  const bool wsd = c.optim.schedule == Schedule::wsd;
  const bool decays = c.optim.weight_decay > 0 || (c.optim.name == OptimizerName::muon && c.muon.weight_decay > 0);
  constexpr const char *kScaled = "only a model.rope_type other than \"default\" uses it",
                       *kLlama3 = "only model.rope_type = \"llama3\" uses it",
                       *kYarn = "only model.rope_type = \"yarn\" uses it",
                       *kWsd = "only optim.schedule = \"wsd\" uses it";
  // "autoddl" may have any axes; its specs say which.
  const bool copies = c.parallel.strategy == StrategyName::megatron_1d && c.parallel.context == 1,
             whole = c.parallel.context == 1 && c.parallel.strategy != StrategyName::autoddl,
             by_heads = c.parallel.strategy == StrategyName::fsdp && c.parallel.context > 1 &&
                        context_heads(c) == c.parallel.context;
  constexpr const char* kCopies = "weights are in flat shards only with parallel.context above 1";
  const std::string learned = format("model.arch = \"{}\" has learned positions", family_of(c.model).name);
  const struct {
    bool off;
    const char *section, *name, *why;
  } all[] = {
      {!has_rope_positions(c.model) && c.model.rope_theta != c.model.family.rope_theta, "model", "rope_theta",
       learned.c_str()},
      {!scaled, "model", "rope_factor", kScaled},
      {!llama3 && !yarn, "model", "rope_original", "only model.rope_type = \"llama3\" and \"yarn\" use it"},
      {!llama3, "model", "rope_low_freq", kLlama3},
      {!llama3, "model", "rope_high_freq", kLlama3},
      {!yarn, "model", "rope_beta_fast", kYarn},
      {!yarn, "model", "rope_beta_slow", kYarn},
      {!yarn, "model", "rope_attention", kYarn},
      {!yarn, "model", "rope_truncate", kYarn},
      {copies, "parallel", "overlap.reduce_scatter", kCopies},
      {copies, "parallel", "overlap.all_gather", kCopies},
      {copies, "parallel", "rs_dtype", kCopies},
      {copies, "parallel", "cache_layers", kCopies},
      {whole, "parallel", "context_heads", "no ranks share sequences: parallel.context = 1"},
      {whole, "parallel", "context_kv", "no ranks share sequences: parallel.context = 1"},
      {by_heads, "parallel", "context_kv", "ranks that share sequences split heads, not tokens"},
      {!wsd, "optim", "decay_fraction", kWsd},
      {!wsd, "optim", "decay_steps", kWsd},
      {!wsd, "optim", "decay_shape", kWsd},
      {wsd && c.optim.decay_steps > 0, "optim", "decay_fraction", "optim.decay_steps is set"},
      {!decays, "optim", "decay", "weight_decay is 0"},
      {c.sgd.momentum == 0, "sgd", "nesterov", "sgd.momentum is 0"},
      {c.model.tie_embeddings.value(), "optim", "head_lr", "the head is the embedding: model.tie_embeddings = true"},
      {!validates && c.train.eval_interval != 0, "train", "eval_interval",
       "there is no validation data (data.val, data.val_fraction)"},
      {!validates, "train", "eval_batches", "there is no validation data (data.val, data.val_fraction)"},
      {c.train.recompute == Recompute::full, "train", "recompute_layers",
       "train.recompute = \"full\" recomputes all layers"},
      {c.data.tokenizer.empty() && c.train.sample_interval != 0, "train", "sample_interval",
       "generating text requires data.tokenizer"},
  };
  for (const auto& [off, section, name, why] : all) {
    const Key& key = *find_key(section, name);
    const auto given = c.origins.find(key.path());
    if (!off || given == c.origins.end() || key.get(c) == key.initial) continue;
    log::warning("{}: has no effect: {}", place(given->second, c.path, key.path()), why);
  }
}

}  // namespace trainer::config
