#include "verify/shrink.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/shape.h"
#include "config/context.h"
#include "config/keys.h"
#include "config/layouts.h"
#include "config/resolve.h"
#include "config/strategies.h"

namespace trainer::verify {
namespace {

constexpr int64_t kHeadSize = 16;  // features of a head, as GPU kernels want them
constexpr int64_t kShortest = 32;  // tokens of a sequence

/// Returns the micro-batches of a step: two, or two for each stage, if that of `full` has as many.
int64_t accumulation_of(const config::Config& full, int64_t data) {
  const int64_t most = full.parallel.stages == 1 ? 2 : 2 * full.parallel.stages;
  return std::min(most, full.train.global_batch / (full.train.micro_batch * data));
}

/// Sets what does not depend on sizes.
void prepare(config::Config& c, const config::Config& full, int64_t world) {
  config::resolve_shards(c, world);
  config::resolve_world(c, world);
  c.train.skip_sigma = 0;
  c.debug.balanced_routing = false;  // counts rows of a replica's micro-batch, so one rank's choices would differ
  c.optim.warmup_steps = 2;
  c.model.init_from.clear();
  if (config::find_key("parallel", "context_heads")->belongs(c.parallel.strategy) && c.parallel.context > 1)
    c.parallel.context_heads = config::context_heads(full);  // not those that fit the small model's heads best
  c.train.global_batch = accumulation_of(full, c.parallel.data) * c.train.micro_batch * c.parallel.data;
}

/// True if the layout fits and its mesh is that of `full`, whose key/value heads may be shared by several ranks.
bool keeps_layout(const config::Config& c, const config::Config& full, int64_t world) {
  return config::layout_fits(c) && config::sharding_on(c, world).axes == config::sharding_on(full, world).axes;
}

/// Gives an extent the least value v · unit, and then twice that, with which the layout fits.
template <typename Set>
void minimize(config::Config& c, const config::Config& full, int64_t world, int64_t most, const Set& set) {
  for (int64_t v = 1; v <= most; ++v) {
    config::Config trial = c;
    set(trial, v);
    if (!keeps_layout(trial, full, world)) continue;
    c = trial;
    set(trial, 2 * v);
    if (2 * v <= most && keeps_layout(trial, full, world)) c = trial;
    return;
  }
}

/// One period of kinds of layers, at least two layers; with stages, two in each chunk that has layers.
void cut_layers(config::Config& c, const config::Config& full) {
  config::Model& m = c.model;
  const int64_t period = std::lcm(std::lcm(std::max<int64_t>(1, m.window > 0 ? m.window_full_every : 1),
                                           std::max<int64_t>(1, config::nope_interval(m))),
                                  m.moe_every);
  int64_t of_specs = 0;  // layers; each has a whole period of those with experts, and begins at the same place in it
  for (config::LayerSpec& spec : c.parallel.layer) {
    const bool last = &spec == &c.parallel.layer.back();
    spec.layers = last ? 0 : spec.layers > m.moe_every ? m.moe_every + spec.layers % m.moe_every : spec.layers;
    of_specs += last ? m.moe_every : spec.layers;
  }
  std::vector<int64_t>& chunks = c.parallel.stage_layers;
  const int64_t filled = std::ssize(chunks) - std::ranges::count(chunks, 0);
  m.n_layer = std::min(m.n_layer, std::max({int64_t{2}, 2 * filled, period, of_specs}));
  int64_t at = 0;  // among the chunks with layers
  for (int64_t& layers : chunks)
    if (layers > 0) {
      layers = m.n_layer * (at + 1) / filled - m.n_layer * at / filled;
      ++at;
    }
  const auto some = [&](int64_t layers) {
    return layers >= full.model.n_layer ? m.n_layer : std::min<int64_t>(layers, 1);
  };
  c.train.recompute_layers = some(c.train.recompute_layers);
  c.parallel.cache_layers = some(c.parallel.cache_layers);
}

}  // namespace

Small shrink(const config::Config& full, int64_t world) {
  Small small{full};
  config::Config& c = small.config;
  prepare(c, full, world);
  config::Config resolved = full;
  config::resolve_shards(resolved, world);
  config::resolve_world(resolved, world);
  resolved.parallel.context_heads = c.parallel.context_heads;
  cut_layers(c, full);
  config::Model& m = c.model;
  const int64_t seq = m.seq_len;
  m.seq_len = std::min(seq, round_up(kShortest, 2 * world / c.parallel.stages));
  if (m.window > 0) m.window = std::clamp<int64_t>(m.window * m.seq_len / seq, 1, m.seq_len);
  if (m.max_positions > 0) m.max_positions = std::max(m.seq_len, std::min(m.max_positions, 2 * m.seq_len));
  const int64_t per_kv = m.n_head / m.n_kv_head, head = std::min(kHeadSize, config::head_size(full.model));
  const bool own_head = full.model.head_dim > 0;
  if (m.rotary_dim > 0)
    m.rotary_dim = std::max<int64_t>(2, m.rotary_dim * head / config::head_size(full.model) / 2 * 2);
  minimize(c, resolved, world, m.n_kv_head, [&](config::Config& t, int64_t kv) {
    t.model.n_kv_head = kv;
    t.model.n_head = kv * per_kv;
    if (own_head) t.model.head_dim = head;
    if (!own_head) t.model.d_model = t.model.n_head * head;
  });
  if (own_head)
    minimize(c, resolved, world, m.d_model / kHeadSize,
             [](config::Config& t, int64_t v) { t.model.d_model = v * kHeadSize; });
  const int64_t chosen = std::min<int64_t>(m.experts_per_token, 2);
  if (m.n_expert >= 2 * chosen) {
    m.experts_per_token = chosen;
    minimize(c, resolved, world, m.n_expert / chosen,
             [&](config::Config& t, int64_t v) { t.model.n_expert = v * chosen; });
  }
  for (int64_t config::Model::*width : {&config::Model::d_ff, &config::Model::d_expert, &config::Model::d_shared})
    minimize(c, resolved, world, m.*width / kHeadSize,
             [&](config::Config& t, int64_t v) { t.model.*width = v * kHeadSize; });
  minimize(c, resolved, world, world, [](config::Config& t, int64_t v) { t.model.vocab_multiple = v * kHeadSize; });
  minimize(c, resolved, world, c.train.micro_batch, [](config::Config& t, int64_t v) { t.train.micro_batch = v; });
  c.train.global_batch = accumulation_of(full, c.parallel.data) * c.train.micro_batch * c.parallel.data;
  m.init_std = 1 / std::sqrt(static_cast<double>(m.d_model));  // scores and logits of order 1
  TRAINER_CHECK(keeps_layout(c, resolved, world), "the small model keeps the layout");
  // Some subgroups in each layer, which has about 12 · d_model² weights.
  c.offload.subgroup = std::min(c.offload.subgroup, std::max<int64_t>(64, round_up(m.d_model * m.d_model, 64)));
  constexpr int64_t kPadding = 3;  // tokens less than a multiple, so that the vocabulary is padded
  small.vocab = 2 * m.vocab_multiple - kPadding;
  return small;
}

Small keep_sizes(const config::Config& full, int64_t world, int64_t vocab) {
  Small same{full, vocab};
  prepare(same.config, full, world);
  return same;
}

config::Config on_one_rank(config::Config c) {
  const int64_t replicas = std::max<int64_t>(1, c.parallel.data);
  c.train.micro_batch *= replicas;
  c.parallel = {};
  c.parallel.strategy = config::strategies().front()->id;
  c.parallel.data = 1;
  c.offload.optimizer = config::OffloadOptimizer::none;
  c.train.recompute = config::Recompute::none;
  c.train.recompute_layers = 0;
  c.debug.emulate_device.clear();
  return c;
}

}  // namespace trainer::verify
