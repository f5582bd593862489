#include "optim/selection.h"

namespace trainer::optim {

ParamClass class_of(const params::ParamTable& table, params::SlotId slot) {
  if (!table.decays(slot)) return ParamClass::vector;
  if (table.parts_of(slot).front().hidden) return ParamClass::hidden;
  const params::SlotGroup& group = table.slot_groups()[static_cast<size_t>(table.group_of(slot))];
  return group.name == "head" ? ParamClass::head : ParamClass::embedding;
}

Selection::Selection(const params::ParamTable& table, const std::function<bool(params::SlotId)>& takes)
    : ranges_(table.slot_groups().size()) {
  for (size_t g = 0; g < ranges_.size(); ++g) {
    const params::SlotGroup& group = table.slot_groups()[g];
    std::vector<Range>& ranges = ranges_[g];
    for (size_t i = 0; i < group.slots.size(); ++i) {
      const params::SlotId slot = group.slots[i];
      if (!takes(slot)) continue;
      // The gradients of padding are zero, so its weights stay zero.
      const int64_t begin = i == 0 ? 0 : table.range_of(slot).offset;
      const int64_t end = i + 1 < group.slots.size() ? table.range_of(group.slots[i + 1]).offset : group.elements;
      const ParamClass of = class_of(table, slot);
      const bool continues =
          !ranges.empty() && ranges.back().of == of && ranges.back().chunk.begin + ranges.back().chunk.count == begin;
      if (!continues) ranges.push_back({{begin, 0}, of});
      ranges.back().chunk.count = end - ranges.back().chunk.begin;
    }
  }
}

std::vector<std::vector<comm::Chunk>> Selection::chunks() const {
  std::vector<std::vector<comm::Chunk>> all(ranges_.size());
  for (size_t g = 0; g < ranges_.size(); ++g)
    for (const auto& [chunk, of] : ranges_[g]) {
      std::vector<comm::Chunk>& joined = all[g];
      if (joined.empty() || joined.back().begin + joined.back().count != chunk.begin)
        joined.push_back({chunk.begin, 0});
      joined.back().count = chunk.begin + chunk.count - joined.back().begin;
    }
  return all;
}

}  // namespace trainer::optim
