// The time and memory of attention and of its exchange of keys and values, as LayerCosts estimates them.
#include <algorithm>
#include <map>

#include "config/context.h"
#include "config/flops.h"
#include "plan/layer_costs.h"

namespace trainer::plan {
namespace {

/// Returns how many segments of `length` keys before its own a query needs, if it sees `window` keys.
int64_t segments_before(int64_t window, int64_t length) { return divide_up(window - 1, length); }

/// Returns the number of segments that all ranks receive. Rank k has segments k and 2·ranks − 1 − k and needs `before`
/// others before each of them.
int64_t received_segments(int64_t ranks, int64_t before) {
  int64_t received = 0;
  for (int64_t k = 0; k < ranks; ++k) {
    const int64_t last = 2 * ranks - 1 - k, first_of_last = std::max<int64_t>(0, last - before);
    received += std::min(k, before) + last - first_of_last - std::max<int64_t>(0, k + 1 - first_of_last);
  }
  return received;
}

}  // namespace

double LayerCosts::attention_seconds(double flops, bool backward) const {
  return cluster_.seconds_of(
      compute_,
      {.kind = OpKind::attention,
       .cost = {flops, 0},
       .product = {},
       .attention = {.length = config_.model.seq_len, .head_dim = head_size(config_.model), .backward = backward}});
}

double LayerCosts::attention_flops(const Spread& spread, double keys) const {
  return 4 * rows_ * keys * queries_ / ranks(spread.rows | spread.cols);
}

double LayerCosts::attention(const Spread& spread, const sharding::ContextSharding& context) {
  const double shares = ranks(spread.rows | spread.cols);
  // Counts only visible keys: without windows half of 4 s² n_head head_dim.
  const double forward = attention_flops(spread, config::mean_visible_keys(config_.model));
  double norms = 0;
  if (query_key_norm(config_.model) != config::QkNorm::none) {
    const double part = rows_ * (queries_ + keys_) / shares * element_;
    norms =
        (config_.train.recompute == config::Recompute::none ? 1 + repeated() : 2) * traffic(OpKind::norm, 2 * part) +
        traffic(OpKind::norm, 3 * part);
  }
  if (query_key_norm(config_.model) == config::QkNorm::full && ranks(spread.cols) > 1) {  // for queries and keys
    const DType sums = accumulator_of(compute_);
    const double rows = rows_ / ranks(spread.rows);
    norms += 2 * (collective(spread.cols, CommOp::all_gather, sums, rows * ranks(spread.cols)) +
                  collective(spread.cols, CommOp::all_reduce, sums, rows));
  }
  return norms + attention_seconds((1 + repeated()) * forward, false) + attention_seconds(2.5 * forward, true) +
         exchange(spread, context);
}

LayerCosts::KeysAndValues LayerCosts::keys_and_values(const Spread& spread, const sharding::ContextSharding& context,
                                                      int64_t window) const {
  const auto size = static_cast<double>(head_size(config_.model));
  const auto heads = static_cast<int64_t>(std::max(1.0, kv_heads_ / ranks(spread.cols)));
  const auto c = static_cast<int64_t>(ranks(context.axes));
  const int64_t at_once = config::gathered_heads(heads);
  KeysAndValues all{.elements = 2 * rows_ / ranks(spread.rows & ~context.axes) * static_cast<double>(heads) * size,
                    .steps = static_cast<double>(heads / at_once)};
  all.sent = all.elements;
  if (window == 0) return all;
  const int64_t segments = 2 * c, before = segments_before(window, config_.model.seq_len / segments);
  const double segment = all.elements / static_cast<double>(segments);
  all.sent = static_cast<double>(received_segments(c, before)) * segment / (ranks(context.axes) - 1);
  all.elements = segment * static_cast<double>(std::min(segments, 2 + 2 * before));
  return all;
}

double LayerCosts::exchange(const Spread& spread, const sharding::ContextSharding& context) {
  const double c = ranks(context.axes);
  if (c == 1) return 0;
  const DType sums = accumulator_of(compute_);
  std::map<int64_t, std::pair<double, double>> kinds;  // by window: share of the layers, keys that a query sees
  for (int64_t layer = 0; layer < config_.model.n_layer; ++layer) {
    auto& [share, keys] = kinds[window_of(config_.model, layer)];
    share += 1 / static_cast<double>(config_.model.n_layer);
    keys = config::keys_in_layer(config_.model, layer);
  }
  double seconds = 0;
  for (const auto& [window, kind] : kinds) {
    const auto& [share, keys] = kind;
    const KeysAndValues all = keys_and_values(spread, context, window);
    const double flops = attention_flops(spread, keys), forward = attention_seconds(flops, false),
                 backward = attention_seconds(2.5 * flops, true);
    const auto in_steps = [&](double steps, double step, double compute) {
      return steps * added(context.axes, step, compute);
    };
    if (window == 0 && context.schedule == sharding::Transfer::ring) {
      // Every hop overlaps with a step of attention.
      const double hop = collective(context.axes, CommOp::shift, compute_, all.elements / c),
                   hop_of_sums = collective(context.axes, CommOp::shift, sums, all.elements / c);
      const double context_bytes =
          rows_ * queries_ / ranks(spread.rows | spread.cols) * (element_ + 2 * static_cast<double>(size_of(sums)));
      seconds += share * ((1 + repeated()) *
                              (in_steps(c - 1, hop, forward / c) + c * traffic(OpKind::elementwise, context_bytes)) +
                          in_steps(c - 1, hop + hop_of_sums, backward / c));
      continue;
    }
    // Those of some heads overlap with attention of the heads before them.
    const CommOp fetches = window == 0 ? CommOp::all_gather : CommOp::all_to_all,
                 returns = window == 0 ? CommOp::reduce_scatter : CommOp::all_to_all;
    const double fetched = collective(context.axes, fetches, compute_, all.sent / all.steps),
                 both = fetched + collective(context.axes, returns, sums, all.sent / all.steps);
    seconds += share * ((1 + repeated()) * (fetched + in_steps(all.steps - 1, fetched, forward / all.steps)) + both +
                        in_steps(all.steps - 1, both, backward / all.steps));
  }
  return seconds;
}

double LayerCosts::exchange_bytes(const Spread& spread, const sharding::ContextSharding& context) const {
  const double c = ranks(context.axes), wide = static_cast<double>(size_of(accumulator_of(compute_)));
  if (c == 1) return 0;
  double most = 0;
  for (int64_t layer = 0; layer < config_.model.n_layer; ++layer) {
    const int64_t window = window_of(config_.model, layer);
    const KeysAndValues all = keys_and_values(spread, context, window);
    const bool ring = window == 0 && context.schedule == sharding::Transfer::ring;
    const double queries = rows_ * queries_ / ranks(spread.rows | spread.cols);
    most = std::max(most, ring ? all.elements / c * (2 * element_ + 4 * wide) + queries * wide
                               : 2 * all.elements / all.steps * (element_ + wide));
  }
  return most;
}

}  // namespace trainer::plan
