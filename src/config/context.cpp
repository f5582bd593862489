#include "config/context.h"

#include <algorithm>
#include <limits>
#include <ranges>

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

bool shares_tokens(const Config& config) {
  const sharding::ModelSharding s = sharding_of(config);
  return !s.layers.empty() && s.wide(s.layers.front().context.axes) != 0;
}

namespace {

constexpr int64_t kLeastTokens = 1024;  // tokens of a sequence per rank; with fewer, weights cost more than attention

}  // namespace

bool splits_well(const Config& config, int64_t ranks) {
  return config.model.seq_len % (2 * ranks) == 0 && config.model.seq_len / ranks >= kLeastTokens;
}

std::string nearest_lengths(const Config& config, int64_t devices) {
  if (config.origins.contains("parallel.context")) return {};
  const int64_t length = config.model.seq_len;
  const std::vector<int64_t> counts = divisors(devices);
  for (const int64_t ranks : counts | std::views::reverse) {
    const int64_t unit = 2 * ranks, below = length / unit * unit;
    if (ranks == 1 || length / ranks < kLeastTokens || below == length) continue;
    return format("parallel.context: seq_len = {} cannot be split into 2 x {} equal segments; use seq_len = {} or {}",
                  length, ranks, below, below + unit);
  }
  return {};
}

int64_t gathered_heads(int64_t kv_heads) {
  int64_t heads = (kv_heads + 3) / 4;
  while (kv_heads % heads != 0) ++heads;
  return heads;
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
  const sharding::ModelSharding s = sharding_of(config);
  const sharding::Layer& layer = s.layers.front();
  const int64_t context = std::max(config.parallel.context, s.ranks(layer.context.axes));
  if (context == 1) return {};
  const int64_t sequences = config.train.micro_batch, length = config.model.seq_len,
                by_heads = context / s.ranks(layer.context.axes), ranks = s.ranks(layer.attention.rows) * by_heads;
  return format("context {}{}: {} of {} tokens per replica, {} tokens per rank", context, context_text(config),
                counted(sequences, "sequence"), length, sequences * length / (ranks * s.depth()));
}

}  // namespace trainer::config
