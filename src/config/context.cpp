#include "config/context.h"

#include <algorithm>
#include <limits>

#include "base/join.h"
#include "base/units.h"
#include "config/strategies.h"

namespace trainer::config {

// Elements that a rank sends and receives in attention, in units of (sequences·S·head size): all-to-alls of q, k, v and
// the output forward, of their gradients backward; keys and values gathered twice, and their gradients
// reduce-scattered, in bf16 with twice the bytes.
int64_t context_heads(const Config& config) {
  const Model& m = config.model;
  const int64_t c = config.parallel.context, heads = m.n_head, kv = m.n_kv_head > 0 ? m.n_kv_head : heads;
  if (config.parallel.context_heads > 0) return config.parallel.context_heads;
  int64_t best = 1;
  double least = std::numeric_limits<double>::infinity();
  for (const int64_t u : divisors(c)) {
    const int64_t r = c / u;
    if (heads % u != 0 || (kv % u != 0 && u % kv != 0) || (r > 1 && m.seq_len % (2 * r) != 0)) continue;
    const auto share = [](int64_t ranks) { return static_cast<double>(ranks - 1) / static_cast<double>(ranks); };
    const double by_heads = static_cast<double>(4 * (heads + std::max(kv, u))) * share(u) / static_cast<double>(c),
                 by_tokens = static_cast<double>(8 * std::max<int64_t>(1, kv / u)) * share(r);
    if (by_heads + by_tokens > least) continue;
    least = by_heads + by_tokens;
    best = u;
  }
  return best;
}

std::string context_text(const Config& config) {
  const sharding::ModelSharding s = sharding_of(config);
  const sharding::Layer& layer = s.layers.front();
  const int64_t tokens = s.ranks(layer.context.axes);
  if (tokens == 1) return {};
  std::vector<std::string> how;
  if (tokens < config.parallel.context)
    how.push_back(format("heads {} x tokens {}", config.parallel.context / tokens, tokens));
  if (config.parallel.context_kv != Panels::automatic)
    how.push_back(config.parallel.context_kv == Panels::ring ? "ring" : "gather");
  return how.empty() ? "" : format(" ({})", fmt::join(how, ", "));
}

std::string context_line(const Config& config) {
  const int64_t sequences = config.train.micro_batch, length = config.model.seq_len;
  if (config.parallel.context == 1) return {};
  const sharding::ModelSharding s = sharding_of(config);
  const int64_t ranks = s.ranks(s.layers.front().stream.rows | s.layers.front().attention.rows) * s.depth();
  return format("context {}{}: {} of {} tokens per replica, {} tokens per rank", config.parallel.context,
                context_text(config), counted(sequences, "sequence"), length, sequences * length / ranks);
}

}  // namespace trainer::config
