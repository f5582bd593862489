// Checks the keys of mixtures of experts.
#include <algorithm>

#include "base/join.h"
#include "config/checker.h"
#include "config/families.h"
#include "config/keys.h"
#include "config/strategies.h"
#include "config/text.h"
#include "config/validate.h"

namespace trainer::config {
namespace {

constexpr const char* kOnlyWithExperts[] = {"model.experts_per_token", "model.d_expert",        "model.d_shared",
                                            "model.moe_every",         "model.norm_topk",       "train.balance_loss",
                                            "train.balance",           "train.router_z_loss",   "parallel.experts",
                                            "parallel.expert_buffer",  "debug.balanced_routing"};

/// Returns the names of the families that satisfy a condition: "mixtral, olmoe, qwen2_moe, qwen3_moe".
template <typename F>
std::string names_of(const F& has) {
  std::vector<std::string> names;
  for (const Family& family : families())
    if (has(family.facts)) names.emplace_back(family.name);
  return format("{}", fmt::join(names, ", "));
}
std::string families_with_experts() {
  return names_of([](const FamilyFacts& facts) { return facts.experts; });
}

void check_dense(const Config& config, Checker& checker) {
  const Model& m = config.model;
  checker.require(!m.family.experts, {"model.n_expert", "model.arch"},
                  "n_expert is missing; arch = \"{}\" requires the number of experts, as in 8", family_of(m).name);
  for (const std::string_view path : kOnlyWithExperts) {
    const size_t dot = path.find('.');
    const Key& key = *find_key(path.substr(0, dot), path.substr(dot + 1));
    const Value value = key.get(config);
    const bool is_set = is_given(config, path.data()) && value != key.initial && value != Value(0.0);
    checker.require(!is_set, {path.data(), "model.n_expert", "model.arch"},
                    "{} has no effect, since the model has no experts (model.n_expert = 0); remove it", to_toml(value));
  }
}

void check_widths(const Model& m, Checker& checker) {
  checker.require(m.d_expert > 0, {"model.d_expert", "model.n_expert"},
                  "d_expert is missing; n_expert = {} requires the width of an expert, as in 1024", m.n_expert);
  checker.require(m.experts_per_token <= m.n_expert, {"model.experts_per_token", "model.n_expert"},
                  "experts_per_token = {} is above n_expert = {}; use 1 to {}", m.experts_per_token, m.n_expert,
                  m.n_expert);
  checker.require(m.moe_every <= m.n_layer, {"model.moe_every", "model.n_layer"},
                  "moe_every = {} leaves none of {} blocks with experts; use 1 to {}", m.moe_every, m.n_layer,
                  m.n_layer);
  checker.require(m.moe_every > 1 || m.d_ff == 0, {"model.d_ff", "model.n_expert", "model.moe_every"},
                  "{} has no effect, since all blocks have experts (moe_every = 1); did you mean d_expert?", m.d_ff);
  checker.require(m.moe_every == 1 || m.d_ff > 0, {"model.d_ff", "model.moe_every", "model.n_expert"},
                  "d_ff is missing; with moe_every = {} all blocks but {}, {}, ... have an MLP of this width",
                  m.moe_every, m.moe_every, 2 * m.moe_every);
  checker.require(m.d_shared == 0 || m.family.shared_expert, {"model.d_shared", "model.arch"},
                  "arch = \"{}\" has no shared expert; remove it, or use arch = \"{}\"", family_of(m).name,
                  names_of([](const FamilyFacts& facts) { return facts.shared_expert; }));
  checker.require(!has_mlp_bias(m), {"model.mlp_bias", "model.bias", "model.n_expert"},
                  "experts have no biases; use false");
}

void check_buffer(const Config& config, Checker& checker) {
  const Parallel& p = config.parallel;
  if (!find_key("parallel", "expert_buffer")->has_effect(config)) return;
  if (has_spec(config) && !layout_fits(config)) return;  // reported elsewhere
  const int64_t ranks = has_spec(config) ? expert_ranks(config) : p.experts;
  checker.require(ranks > 1 || p.expert_buffer == Parallel().expert_buffer, {"parallel.expert_buffer"},
                  "{} has no effect, since no ranks divide the experts; remove it", p.expert_buffer);
  checker.require(
      ranks == 1 || p.expert_buffer <= static_cast<double>(ranks), {"parallel.expert_buffer", "parallel.experts"},
      "{} is above {}, the number of ranks that divide the experts; use 1 to {}", p.expert_buffer, ranks, ranks);
}

/// Rejects what experts cannot be combined with.
void check_combinations(const Config& config, Checker& checker) {
  const struct {
    bool used;
    const char* key;
    std::string what;
    const char* remedy;  // after the reason, if there is one
  } all[] = {
      {config.optim.mup_base_width > 0, "optim.mup_base_width", format("{}", config.optim.mup_base_width),
       ", since the widths of router and experts have no agreed scaling; use 0"},
      {config.debug.replay_every > 0, "debug.replay_every", format("{}", config.debug.replay_every),
       ", since the loads of experts depend on the batches of all replicas; use 0"},
  };
  for (const auto& [used, key, what, remedy] : all)
    checker.require(!used, {key, "model.n_expert"}, "{} is not supported for models with experts (n_expert = {}){}",
                    what, config.model.n_expert, remedy);
}

}  // namespace

void check_experts(const Config& config, const LoadOptions& options, Checker& checker) {
  const Model& m = config.model;
  if (m.n_expert == 0) return check_dense(config, checker);
  checker.require(m.family.experts, {"model.n_expert", "model.arch"},
                  "arch = \"{}\" has no experts; remove it, or use one of {}", family_of(m).name,
                  families_with_experts());
  check_widths(m, checker);
  if (!options.plans && !is_automatic(config)) check_buffer(config, checker);
  check_combinations(config, checker);
}

}  // namespace trainer::config
