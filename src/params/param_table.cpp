#include "params/param_table.h"

#include <algorithm>

namespace trainer::params {
namespace {

// In elements: slots begin on 64-byte boundaries with every element type.
constexpr int64_t kSlotAlign = 32;

/// Returns the rows of a box in its slot's matrix.
int64_t rows_of(const Shape& box) { return box.count() / box[-1]; }

}  // namespace

std::vector<Region> clip(const Region& region, comm::Chunk chunk) {
  const int64_t begin = chunk.begin - region.offset, end = chunk.begin + chunk.count - region.offset;
  const int64_t rows = region.rows, cols = region.cols, pitch = std::max<int64_t>(region.pitch, 1);
  // Rows [first, last) are completely inside the chunk.
  const int64_t first = begin <= 0 ? 0 : std::min(rows, divide_up(begin, pitch));
  const int64_t last = std::clamp(end < cols ? 0 : (end - cols) / pitch + 1, first, rows);
  std::vector<Region> inside;
  const auto part_of_row = [&](int64_t row) {
    const int64_t from = std::max(row * pitch, begin), to = std::min(row * pitch + cols, end);
    if (row >= 0 && row < rows && from < to) inside.push_back({region.offset + from, 1, to - from, to - from});
  };
  part_of_row(first - 1);
  if (last > first) inside.push_back({region.offset + first * pitch, last - first, cols, pitch});
  part_of_row(last);
  return inside;
}

int ParamTable::add_group(std::string name) {
  slot_groups_.push_back({.name = std::move(name)});
  return static_cast<int>(slot_groups_.size()) - 1;
}

SlotId ParamTable::add_slot(int group, std::vector<SlotPart> parts) {
  SlotGroup& owner = slot_groups_.at(static_cast<size_t>(group));
  TRAINER_CHECK(!closed_, "group {} is allocated already: no slot can be added", owner.name);
  const mesh::Layout& first = parts.front().layout;
  const bool matrix = first.box().dims() >= 2;
  int64_t cols = 0;
  for (const SlotPart& part : parts) cols += part.layout.box()[-1];
  Slot slot;
  slot.group = group;
  slot.offset = owner.elements;
  slot.box = matrix ? Shape{rows_of(first.box()), cols} : Shape{cols};
  slot.flat = first.axes(mesh::kFlat);
  slot.stored = slot.flat != 0 ? Shape{piece_of(slot).count} : slot.box;
  slot.decay = matrix;
  // Every rank reserves memory for the largest shard, so that offsets, and with them chunks, are equal on all ranks. So
  // ranks that hold the same elements compute bitwise identical results.
  owner.elements =
      round_up(owner.elements + divide_up(slot.box.count(), int64_t{mesh_shape_.group_size(slot.flat)}), kSlotAlign);
  const int here = rank_of_first_replica();
  for (const SlotPart& part : parts) {
    const Shape box = part.layout.box();
    TRAINER_CHECK((box.dims() >= 2) == matrix && (!matrix || rows_of(box) == slot.box[0]),
                  "{}: the local shape of this part, {}, must have as many rows as that of its slot, {}", part.name,
                  to_string(box), to_string(slot.box));
    TRAINER_CHECK(part.layout.axes(mesh::kFlat) == slot.flat, "{} must be sharded over the same flat axes as {}",
                  part.name, parts.front().name);
    slot.params.push_back(static_cast<int>(params_.size()));
    owner.params.push_back(static_cast<int>(params_.size()));
    const bool primary = !part.copy && part.layout.is_owner(here);
    params_.push_back(
        {part.name, part.layout.shape(), part.init, group, primary, part.copy, part.hidden, part.whole_matrix, {}});
  }
  slot.parts = std::move(parts);
  slots_.push_back(std::move(slot));
  owner.slots.push_back(static_cast<SlotId>(slots_.size()) - 1);
  return owner.slots.back();
}

void ParamTable::close() {
  closed_ = true;
  for (const Slot& slot : slots_) {
    int64_t first_col = 0;
    for (size_t i = 0; i < slot.parts.size(); ++i) {
      const mesh::Layout& layout = slot.parts[i].layout;
      std::vector<mesh::Run>& runs = params_[static_cast<size_t>(slot.params[i])].runs;
      runs = layout.runs(rank_, {.offset = first_col, .pitch = slot.box[-1]});
      for (mesh::Run& run : runs) run.local += slot.offset;
      first_col += layout.box()[-1];
    }
  }
}

comm::Chunk ParamTable::piece_of(const Slot& slot) const {
  return comm::chunk_of(slot.box.count(), mesh_shape_.group_size(slot.flat), mesh_shape_.index(rank_, slot.flat));
}

int ParamTable::rank_of_first_replica() const {
  mesh::AxisSet apart = 0;  // "data" may be several axes: replicas, and the depth of a 2.5D mesh
  for (const char* name : {"data", "stage"})
    if (mesh_shape_.has(name)) apart |= mesh_shape_.set(name);
  int rank = rank_, stride = mesh_shape_.world_size();
  for (int axis = 0; axis < mesh_shape_.axes(); ++axis) {
    stride /= mesh_shape_.size(axis);
    if ((apart >> axis & 1) != 0) rank -= mesh_shape_.coordinate(rank_, axis) * stride;
  }
  return rank;
}

std::vector<Region> ParamTable::columns_of(const Slot& slot, int64_t first, int64_t width) const {
  const comm::Chunk piece = piece_of(slot);
  const int64_t cols = slot.box[-1];
  std::vector<Region> regions = width == cols ? std::vector<Region>{{piece.begin, 1, piece.count, piece.count}}
                                              : clip({first, slot.box.count() / cols, width, cols}, piece);
  for (Region& region : regions) region.offset += slot.offset - piece.begin;
  std::erase_if(regions, [](const Region& region) { return region.count() == 0; });
  return regions;
}

std::vector<ParamTable::Sum> ParamTable::sums_of(int group) const {
  std::vector<Sum> sums;
  for (const SlotId id : slot_groups_[static_cast<size_t>(group)].slots) {
    const Slot& slot = at(id);
    int64_t first = 0;
    for (const SlotPart& part : slot.parts) {
      const int64_t width = part.layout.box()[-1];
      const std::vector<Region> regions = columns_of(slot, first, width);
      first += width;
      if (mesh_shape_.group_size(part.sum_over) == 1 || regions.empty()) continue;
      auto sum = std::ranges::find_if(
          sums, [&](const Sum& s) { return s.axes == part.sum_over && s.sharded == (slot.flat != 0); });
      if (sum == sums.end()) sum = sums.insert(sums.end(), {part.sum_over, slot.flat != 0, {}});
      for (const Region& region : regions) {
        Region* const before = sum->regions.empty() ? nullptr : &sum->regions.back();
        const bool adjoins = before != nullptr && before->rows == 1 && region.rows == 1 &&
                             before->offset + before->cols == region.offset;
        if (adjoins) {
          before->cols = before->pitch = before->cols + region.cols;
        } else {
          sum->regions.push_back(region);
        }
      }
    }
  }
  return sums;
}

std::vector<Region> ParamTable::counted_regions(int group) const {
  std::vector<Region> all;
  const int here = rank_of_first_replica();
  bool whole_before = false;  // the previous slot is counted whole too: one region covers both slots and their padding
  for (const SlotId id : slot_groups_[static_cast<size_t>(group)].slots) {
    const Slot& slot = at(id);
    const auto owned = [&](const SlotPart& part) { return !part.copy && part.layout.is_owner(here); };
    const bool whole = std::ranges::all_of(slot.parts, owned);
    int64_t first = 0;
    for (const SlotPart& part : slot.parts) {
      const int64_t width = whole ? slot.box[-1] : part.layout.box()[-1];
      for (const Region& region : owned(part) ? columns_of(slot, first, width) : std::vector<Region>()) {
        if (whole && whole_before) {
          all.back().cols = region.offset + region.cols - all.back().offset;
        } else {
          all.push_back(region);
        }
      }
      if (whole) break;
      first += width;
    }
    whole_before = whole && !all.empty();
  }
  return all;
}

int64_t ParamTable::parameter_count() const {
  int64_t count = 0;
  for (const Param& param : params_) count += param.copy ? 0 : param.count();
  return count;
}

}  // namespace trainer::params
