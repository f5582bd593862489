#include "params/param_store.h"

#include <algorithm>

#include "base/philox.h"
#include "ops/elementwise.h"
#include "ops/normals.h"
#include "tensor/host_copy.h"

namespace trainer::params {
namespace {

// Slots begin on 64-byte lines in every element type.
constexpr int64_t kSlotAlign = 32;
constexpr int64_t kInitChunk = 1 << 16;

template <typename T>
void fill_run(const device::Device& device, T* out, const mesh::Run& run, int64_t begin, int64_t end, const Init& init,
              PhiloxKey key) {
  // Elements [begin, end) of the run, four normals to a Philox block counted by global index.
  constexpr int64_t kBlocks = 256;
  double draws[4 * kBlocks];
  for (int64_t i = begin; i < end;) {
    const int64_t global = run.global + i, skip = global % 4, n = std::min(4 * kBlocks - skip, end - i);
    ops::fill_normals(device, key, static_cast<uint64_t>(global / 4), divide_up(skip + n, int64_t{4}), draws);
    T* const to = out + run.local + i * run.stride;
    for (int64_t j = 0; j < n; ++j) to[j * run.stride] = static_cast<T>(init.std * draws[skip + j]);
    i += n;
  }
}

/// `runs` count local offsets in `flat`.
template <typename T>
void initialize_param(device::Device& device, const Param& param, const std::vector<mesh::Run>& runs, T* flat,
                      uint64_t seed) {
  const PhiloxKey key = philox_key(seed, param.name);
  // Long runs are cut into chunks, short ones (columns of a shared slot) are taken many at a time.
  std::vector<std::pair<size_t, int64_t>> chunks;
  for (size_t r = 0; r < runs.size(); ++r)
    for (int64_t at = 0; at < runs[r].length; at += kInitChunk) chunks.emplace_back(r, at);
  device.host_pool().parallel_for(static_cast<int64_t>(chunks.size()), [&](int64_t task) {
    const auto [index, begin] = chunks[static_cast<size_t>(task)];
    const mesh::Run& run = runs[index];
    const int64_t end = std::min(run.length, begin + kInitChunk);
    if (param.init.kind == Init::Kind::normal) {
      fill_run(device, flat, run, begin, end, param.init, key);
    } else {
      const T value = param.init.kind == Init::Kind::ones ? T{1} : T{0};
      for (int64_t i = begin; i < end; ++i) flat[run.local + i * run.stride] = value;
    }
  });
}

}  // namespace

std::vector<Region> clip(const Region& region, comm::Chunk chunk) {
  const int64_t begin = chunk.begin - region.offset, end = chunk.begin + chunk.count - region.offset;
  const int64_t rows = region.rows, cols = region.cols, pitch = std::max<int64_t>(region.pitch, 1);
  // Rows [first, last) lie inside whole.
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

ParamStore::ParamStore(device::Device& device, DType compute, mesh::Mesh* mesh, bool split_state)
    : device_(device),
      compute_(compute),
      mesh_(mesh),
      mesh_shape_(mesh == nullptr ? mesh::MeshShape() : mesh->shape()),
      rank_(mesh == nullptr ? 0 : mesh->rank()),
      weights_(*this) {
  if (mesh == nullptr || !mesh->shape().has("data") || mesh->size("data") == 1) return;
  replicas_ = {.grads = &mesh->along("data", comm::Lane::grads),
               .weights = &mesh->along("data", comm::Lane::weights),
               .split_state = split_state};
}

int ParamStore::add_group(std::string name) {
  Group group;
  group.name = std::move(name);
  groups_.push_back(std::move(group));
  return static_cast<int>(groups_.size()) - 1;
}

SlotId ParamStore::add_slot(int group, std::vector<Part> parts) {
  Group& owner = groups_.at(static_cast<size_t>(group));
  TRAINER_CHECK(!owner.master, "group {} is allocated", owner.name);
  const mesh::Layout& first = parts.front().layout;
  const bool matrix = first.box().dims() == 2;
  int64_t cols = 0;
  for (const Part& part : parts) cols += part.layout.box()[-1];
  Slot slot;
  slot.group = group;
  slot.offset = owner.elements;
  slot.box = matrix ? Shape{first.box()[0], cols} : Shape{cols};
  slot.flat = first.axes(mesh::kFlat);
  slot.stored = slot.flat != 0 ? Shape{piece_of(slot).count} : slot.box;
  slot.decay = matrix;
  // Room for the largest piece everywhere: equal places make equal chunks, and so equal bits, of what ranks share.
  owner.elements =
      round_up(owner.elements + divide_up(slot.box.count(), int64_t{mesh_shape_.group_size(slot.flat)}), kSlotAlign);
  const int here = rank_of_first_replica();
  int64_t first_col = 0;
  for (const Part& part : parts) {
    const Shape box = part.layout.box();
    TRAINER_CHECK(box.dims() == slot.box.dims() && (!matrix || box[0] == slot.box[0]), "{}: {} beside {}", part.name,
                  to_string(box), to_string(slot.box));
    TRAINER_CHECK(part.layout.axes(mesh::kFlat) == slot.flat, "{} is spread in another way than {}", part.name,
                  parts.front().name);
    std::vector<mesh::Run> runs = part.layout.runs(rank_, {.offset = first_col, .pitch = cols});
    for (mesh::Run& run : runs) run.local += slot.offset;
    slot.params.push_back(static_cast<int>(params_.size()));
    owner.params.push_back(static_cast<int>(params_.size()));
    params_.push_back(
        {part.name, part.layout.shape(), part.init, matrix, group, part.layout.owner(here), std::move(runs)});
    first_col += box[-1];
  }
  slot.parts = std::move(parts);
  slots_.push_back(std::move(slot));
  owner.slots.push_back(static_cast<SlotId>(slots_.size()) - 1);
  return owner.slots.back();
}

comm::Chunk ParamStore::piece_of(const Slot& slot) const {
  return comm::chunk_of(slot.box.count(), mesh_shape_.group_size(slot.flat), mesh_shape_.index(rank_, slot.flat));
}

int ParamStore::rank_of_first_replica() const {
  return replicas_.count() == 1 ? rank_ : mesh_shape_.members(rank_, mesh_shape_.set("data")).front();
}

std::vector<Region> ParamStore::columns_of(const Slot& slot, int64_t first, int64_t width) const {
  const comm::Chunk piece = piece_of(slot);
  const int64_t cols = slot.box[-1];
  std::vector<Region> regions = width == cols ? std::vector<Region>{{piece.begin, 1, piece.count, piece.count}}
                                              : clip({first, slot.box.count() / cols, width, cols}, piece);
  for (Region& region : regions) region.offset += slot.offset - piece.begin;
  std::erase_if(regions, [](const Region& region) { return region.count() == 0; });
  return regions;
}

std::vector<ParamStore::Sum> ParamStore::sums_of(int group) const {
  std::vector<Sum> sums;
  for (const SlotId id : groups_[static_cast<size_t>(group)].slots) {
    const Slot& slot = slots_[static_cast<size_t>(id)];
    int64_t first = 0;
    for (const Part& part : slot.parts) {
      const int64_t width = part.layout.box()[-1];
      const std::vector<Region> regions = columns_of(slot, first, width);
      first += width;
      if (mesh_shape_.group_size(part.sum_over) == 1 || regions.empty()) continue;
      auto sum = std::ranges::find_if(
          sums, [&](const Sum& s) { return s.axes == part.sum_over && s.spread == (slot.flat != 0); });
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

std::vector<Region> ParamStore::counted(int group) const {
  std::vector<Region> all;
  const int here = rank_of_first_replica();
  bool whole_before = false;  // the slot before is counted whole: one region for both, with the padding between them
  for (const SlotId id : groups_[static_cast<size_t>(group)].slots) {
    const Slot& slot = slots_[static_cast<size_t>(id)];
    const auto owned = [&](const Part& part) { return part.layout.owner(here); };
    const bool whole = std::ranges::all_of(slot.parts, owned);
    int64_t first = 0;
    for (const Part& part : slot.parts) {
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

void ParamStore::allocate(bool training) {
  const DType state = state_dtype();
  weights_.allocate();
  for (Group& group : groups_) {
    const Shape flat{group.elements};
    group.owned = comm::chunk_of(group.elements, replicas_.count(), replicas_.index());
    group.held = replicas_.split_state ? group.owned : comm::Chunk{0, group.elements};
    const Shape held{group.held.count};
    if (compute_ != state) {
      group.compute = Buffer(device_, "weights", flat, compute_);
      group.master = Buffer(device_, "master_weights", held, state);
    } else {
      group.master = Buffer(device_, "weights", flat, state);
    }
    if (!training) continue;
    group.grad = Buffer(device_, "gradients", flat, state);
    group.m = Buffer(device_, "optimizer", held, state);
    group.v = Buffer(device_, "optimizer", held, state);
  }
}

void ParamStore::initialize(uint64_t seed) {
  if (device_.dry()) return;
  HostCopy master;  // draws are made on the host for every device: they are the same bits
  for (const Group& group : groups_) {
    master.get(device_, group.master);
    const auto [begin, count] = group.master_range();
    for (const int index : group.params) {
      const Param& param = params_[static_cast<size_t>(index)];
      const std::vector<mesh::Run> runs = mesh::clip_runs(param.runs, begin, count);
      if (master.tensor().dtype == DType::f64) {
        initialize_param(device_, param, runs, master.tensor().as<double>(), seed);
      } else {
        initialize_param(device_, param, runs, master.tensor().as<float>(), seed);
      }
    }
    master.put();
  }
  refresh_compute();
}

void ParamStore::refresh_compute() {
  weights_changed();
  if (device_.dry()) return;
  Arena heap(device_, Arena::Mode::heap);
  Meter meter;
  Exec ex{device_, heap, meter};
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    if (!group.compute) continue;
    ops::run(ex, ops::Cast{group.master, group.compute.tensor().range(group.held.begin, group.held.count)});
    if (replicas_.split_state) gather_weights(ex, static_cast<int>(g)).join(ex);
  }
}

comm::Ticket ParamStore::gather_weights(Exec& ex, int index) {
  const Group& group = groups_[static_cast<size_t>(index)];
  const Tensor all = group.compute ? group.compute.tensor() : group.master.tensor();
  return replicas_.weights->all_gather(ex, all.range(group.owned.begin, group.owned.count), all);
}

Tensor ParamStore::stored_weight(SlotId id) const {
  const Slot& slot = slots_[static_cast<size_t>(id)];
  const Group& group = groups_[static_cast<size_t>(slot.group)];
  const Tensor flat = group.compute ? group.compute.tensor() : group.master.tensor();
  TRAINER_CHECK(flat, "weights of group {} are not allocated", group.name);
  return {flat.data == nullptr ? nullptr : flat.data + slot.offset * size_of(flat.dtype), slot.stored, flat.dtype, 0};
}

Tensor ParamStore::weight(SlotId id) const {
  TRAINER_CHECK(!spread(id), "{} is stored in pieces: hold it", slots_[static_cast<size_t>(id)].parts.front().name);
  return stored_weight(id);
}

Tensor ParamStore::gradient(SlotId id) const {
  const Slot& slot = slots_[static_cast<size_t>(id)];
  const Tensor flat = groups_[static_cast<size_t>(slot.group)].grad;
  TRAINER_CHECK(flat, "no gradients: the store was not allocated for training");
  return {flat.data == nullptr ? nullptr : flat.data + slot.offset * size_of(flat.dtype), slot.stored, flat.dtype, 0};
}

int64_t ParamStore::parameter_count() const {
  int64_t count = 0;
  for (const Param& param : params_) count += param.count();
  return count;
}

ParamStore::Range ParamStore::range_of(SlotId id) const {
  const Slot& slot = slots_[static_cast<size_t>(id)];
  return {slot.offset, slot.stored.count()};
}

}  // namespace trainer::params
