#pragma once
// DecayRanges splits each group's flat buffer into ranges of uniform weight decay, so that an update needs few kernel
// calls. The ranges cover the whole buffer including its padding, so that tensors written together with the weights,
// such as copies in a different type, are written completely.
#include <vector>

#include "params/param_store.h"

namespace trainer::optim {

class DecayRanges {
 public:
  explicit DecayRanges(const params::ParamStore& store);

  /// Calls fn(chunk, decay) for the part of each range that is within `part`, in order.
  template <typename F>
  void each(int group, comm::Chunk part, F&& fn) const {
    const int64_t end = part.begin + part.count;
    for (const Range& range : ranges_[static_cast<size_t>(group)]) {
      const int64_t from = std::max(range.begin, part.begin), to = std::min(range.begin + range.count, end);
      if (from < to) fn(comm::Chunk{from, to - from}, range.decay);
    }
  }

 private:
  struct Range {
    int64_t begin, count;
    bool decay;
  };
  std::vector<std::vector<Range>> ranges_;  // by group
};

}  // namespace trainer::optim
