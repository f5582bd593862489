#include "parallel/row_order.h"

#include "base/error.h"

namespace trainer::parallel {

int64_t RowOrder::segments(const sharding::ModelSharding& sharding) {
  const int64_t sharers = sharding.ranks(sharding.layers.front().context.axes);
  return sharers > 1 ? 2 * sharers : 1;
}

RowOrder::RowOrder(const sharding::ModelSharding& sharding, int64_t sequences, int64_t seq_len) : seq_len_(seq_len) {
  const int64_t segments = RowOrder::segments(sharding);
  if (segments == 1) return;
  const sharding::Layer& layer = sharding.layers.front();
  const int64_t ranks = sharding.ranks(layer.attention.rows), sharers = segments / 2;
  const int64_t each = sequences * sharers / ranks, length = seq_len / segments;
  TRAINER_CHECK(sequences * sharers % ranks == 0 && seq_len % segments == 0,
                "{} sequences of {} tokens cannot be split evenly over {} ranks, {} of which share each sequence",
                sequences, seq_len, ranks, sharers);
  for (int64_t range = 0; range < ranks; ++range) {
    // The range's coordinates along the axes, innermost first, yield its group of ranks and its index in the group.
    int64_t group = 0, index = 0, groups = 1, indices = 1, rest = range;
    for (size_t a = sharding.axes.size(); a-- > 0;) {
      if ((layer.attention.rows >> a & 1) == 0) continue;
      const int64_t size = sharding.axes[a].size, coordinate = rest % size;
      rest /= size;
      const bool shares = (layer.context.axes >> a & 1) != 0;
      (shares ? index : group) += coordinate * (shares ? indices : groups);
      (shares ? indices : groups) *= size;
    }
    for (const int64_t segment : {index, segments - 1 - index})
      for (int64_t sequence = group * each; sequence < (group + 1) * each; ++sequence)
        for (int64_t token = 0; token < length; ++token)
          rows_.push_back(static_cast<int32_t>(sequence * seq_len + segment * length + token));
  }
}

std::vector<int32_t> RowOrder::positions() const {
  std::vector<int32_t> positions = rows_;
  for (int32_t& row : positions) row = static_cast<int32_t>(row % seq_len_);
  return positions;
}

}  // namespace trainer::parallel
