#include "optim/decay_ranges.h"

namespace trainer::optim {

DecayRanges::DecayRanges(const params::ParamStore& store) : ranges_(store.groups().size()) {
  for (params::SlotId slot = 0; slot < store.slots(); ++slot) {
    std::vector<Range>& ranges = ranges_[static_cast<size_t>(store.group_of(slot))];
    const auto [offset, count] = store.range_of(slot);
    if (!ranges.empty() && ranges.back().decay == store.decays(slot)) {
      ranges.back().count = offset + count - ranges.back().begin;
    } else {
      ranges.push_back({offset, count, store.decays(slot)});
    }
  }
  // Padding belongs to the range before it. The gradients of padding are zero, so its weights stay zero.
  for (size_t g = 0; g < ranges_.size(); ++g)
    for (size_t i = 0; i < ranges_[g].size(); ++i) {
      const int64_t end = i + 1 < ranges_[g].size() ? ranges_[g][i + 1].begin : store.groups()[g].elements;
      ranges_[g][i].count = end - ranges_[g][i].begin;
    }
}

}  // namespace trainer::optim
