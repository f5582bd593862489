#include "params/grad_sink.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ranges>

#include "ops/activation.h"
#include "ops/elementwise.h"

namespace trainer::params {
namespace {

/// Returns the index in the global tensor of the first value that is not finite; -1 if there is none.
template <typename T>
int64_t first_nonfinite(const T* values, const mesh::Run& run) {
  for (int64_t i = 0; i < run.length; ++i)
    if (!std::isfinite(values[run.local + i * run.stride])) return run.global + i;
  return -1;
}

int64_t norm_blocks(const Region& region) { return divide_up(region.count(), ops::kNormBlock); }

}  // namespace

GradSink::GradSink(ParamStore& store, const Options& options)
    : store_(store),
      slots_(static_cast<size_t>(store.slots())),
      groups_(store.slot_groups().size()),
      options_(options) {
  for (size_t g = 0; g < groups_.size(); ++g) groups_[g].id = static_cast<int>(g);
  flights_.reserve(kMostFlights);
}

void GradSink::prepare(device::Device& device) {
  int64_t blocks = 0, largest_strided = 0;
  size_t ranges = 0;
  for (GroupState& state : groups_) {
    // Blocks restart at the beginning of each replica's chunk, whether or not the optimizer state is sharded.
    for (const Region& region : store_.counted_regions(state.id))
      for (const Region& owned : clip(region, buffers(state).owned)) {
        state.ranges.push_back({owned, blocks});
        blocks += norm_blocks(owned);
        if (owned.rows > 1) largest_strided = std::max(largest_strided, owned.count());
      }
    ranges += state.ranges.size();
    for (ParamStore::Sum& sum : store_.sums_of(state.id)) {
      Sum& own = state.sums.emplace_back(
          Sum{&store_.mesh()->along(sum.axes, comm::Purpose::grads), sum.sharded, std::move(sum.regions), {}, {}});
      int64_t count = 0;
      for (const Region& region : own.regions) count += region.count();
      if (!own.in_place()) own.packed = Buffer(device, "gradients", {count}, store_.state_dtype());
    }
  }
  if (shared_.slot >= 0) other_ = Buffer(device, "gradients", store_.stored(shared_.slot), store_.state_dtype());
  norms_.reserve(ranges);
  if (largest_strided > 0) strided_ = Buffer(device, "gradients", {largest_strided}, store_.state_dtype());
  blocks_ = Buffer(device, "gradients", {blocks}, DType::f64);
  const mesh::MeshShape& mesh = store_.mesh_shape();
  int64_t longest = 1;
  for (int i = 2 * mesh.axes() - 1; i >= 0; --i) {
    const int axis = i % mesh.axes();
    const bool first = (options_.apart >> axis & 1) != 0;
    if (mesh.size(axis) == 1 || first != (i >= mesh.axes())) continue;
    const bool all = mesh.size(axis) == mesh.world_size();  // then there is a communicator already
    ranks_.push_back(&store_.mesh()->along(all ? mesh.all() : mesh::AxisSet{1} << axis, comm::Purpose::control));
    longest = std::max<int64_t>(longest, mesh.size(axis));
  }
  squares_ = Buffer(device, "gradients", {longest, std::ssize(groups_)}, DType::f64);
}

Tensor GradSink::region_of(const GroupState& group, const Region& region) const {
  const Tensor grad = buffers(group).grad;
  if (region.rows == 1) return grad.range(region.offset, region.cols);
  Tensor matrix = grad.range(region.offset, (region.rows - 1) * region.pitch + region.cols);
  matrix.shape = {region.rows, region.cols};
  matrix.pitch = region.pitch;
  return matrix;
}

void GradSink::begin_step() {
  for (SlotState& slot : slots_) slot.written = false;
  for (GroupState& group : groups_) group.phase = Phase::untouched;
}

void GradSink::mark_all_written() {
  for (SlotState& slot : slots_) slot.written = true;
  for (GroupState& group : groups_) group.phase = std::max(group.phase, Phase::placed);
}

GradSlot GradSink::slot(Exec& ex, SlotId id) {
  if (!store_.is_sharded(id)) return stored_slot(ex, id);
  Scratch& block = at(id).outgoing;
  const bool accumulate = static_cast<bool>(block);
  if (!accumulate) {
    while (flights_.size() >= kMostFlights) join_oldest_flight(ex);
    block = ex.take("gradient.outgoing", store_.box(id), store_.state_dtype());
  }
  return {block, accumulate};
}

void GradSink::complete(Exec& ex, SlotId id) {
  if (!store_.is_sharded(id)) return;
  Scratch block = std::move(at(id).outgoing);
  TRAINER_CHECK(block, "complete() of slot {} must follow a write of its gradient", id);
  comm::Communicator& group = store_.mesh()->along(store_.flat_axes(id), comm::Purpose::grads);
  const bool accumulate = begin_write(ex, id);
  const Tensor home = store_.gradient(id), flat = block.tensor().reshape({block.tensor().count()});
  while (flights_.size() >= kMostFlights) join_oldest_flight(ex);
  if (const DType type = options_.scatters.value_or(flat.dtype); type != flat.dtype) {
    Scratch sent = ex.take("gradient.sent", flat.shape, type), piece = ex.take("gradient.piece", home.shape, type);
    ops::run(ex, ops::Cast{flat, sent});
    block = std::move(sent);
    flights_.push_back({id, group.reduce_scatter(ex, block, piece), std::move(piece), accumulate});
  } else {
    // Adds the gradient of earlier micro-batches to this rank's partial sum of its own shard.
    const comm::Chunk piece = group.chunk(flat.count());
    const Tensor own = flat.range(piece.begin, piece.count);
    if (accumulate) ops::run(ex, ops::Add{.x = own, .other = home, .y = own});
    flights_.push_back({id, group.reduce_scatter(ex, flat, home), {}});
  }
  flights_.back().ticket.keep(std::move(block));
  if (!options_.overlap) join_oldest_flight(ex);
}

bool GradSink::begin_write(Exec& ex, SlotId id) {
  GroupState& group = groups_[static_cast<size_t>(store_.group_of(id))];
  TRAINER_CHECK(group.phase <= Phase::placed, "a gradient must be written before its group {} ends",
                buffers(group).name);
  if (group.phase == Phase::untouched) store_.place_gradient(ex, group.id);
  group.phase = Phase::placed;
  return std::exchange(at(id).written, true);
}

GradSlot GradSink::stored_slot(Exec& ex, SlotId id) {
  const bool accumulate = begin_write(ex, id);
  return {store_.gradient(id), accumulate};
}

void GradSink::join_later(Exec& ex, SlotId id, comm::Ticket&& ticket) {
  while (flights_.size() >= kMostFlights) join_oldest_flight(ex);
  flights_.push_back({id, std::move(ticket), {}});
  if (!options_.overlap) join_oldest_flight(ex);
}

void GradSink::join_oldest_flight(Exec& ex) {
  Flight& flight = flights_.front();
  flight.ticket.join(ex);
  if (flight.piece) {
    const Tensor home = store_.gradient(flight.slot);
    // Always taken, so that one recorded program fits all micro-batches.
    Scratch wide = ex.take("gradient.arrived", home.shape, home.dtype);
    ops::run(ex, ops::Cast{flight.piece, flight.accumulate ? wide.tensor() : home});
    if (flight.accumulate) ops::run(ex, ops::Add{.x = home, .other = wide, .y = home});
    flight.piece.reset();
  }
  flights_.erase(flights_.begin());
}

void GradSink::end_group(Exec& ex, int id) {
  end_reductions(ex);
  if (!store_.has(id)) return;
  GroupState& group = groups_[static_cast<size_t>(id)];
  TRAINER_CHECK(group.phase <= Phase::placed, "group {} must end once per micro-batch", buffers(group).name);
  group.phase = Phase::ending;
  start_sums(ex, group, /*sharded=*/false);
  if (!has_gradient_in_flight(group) && group.sums.empty()) end_reductions(ex);
}

void GradSink::start_sums(Exec& ex, GroupState& group, bool sharded) {
  for (Sum& sum : group.sums) {
    if (!last_ || sum.sharded != sharded) continue;
    if (!sum.in_place()) copy_regions(ex, group, sum, /*back=*/false);
    sum.ticket =
        sum.group->all_reduce(ex, sum.in_place() ? region_of(group, sum.regions.front()) : sum.packed.tensor());
  }
}

void GradSink::copy_regions(Exec& ex, const GroupState& group, const Sum& sum, bool back) {
  int64_t at = 0;
  for (const Region& region : sum.regions) {
    const Tensor own = region_of(group, region);
    const Tensor packed = sum.packed.tensor().range(at, region.count()).reshape(own.shape);
    ops::run(ex, back ? ops::Copy{packed, own} : ops::Copy{own, packed});
    at += region.count();
  }
}

void GradSink::end_reductions(Exec& ex) {
  GroupState* const group = group_in(Phase::ending);
  if (group == nullptr) return;
  while (has_gradient_in_flight(*group)) join_oldest_flight(ex);
  start_sums(ex, *group, /*sharded=*/true);  // all-reduces shards whose reduce-scatter has just ended
  group->phase = Phase::placed;
  if (!last_) return;
  for (Sum& sum : group->sums) {
    sum.ticket.join(ex);
    if (!sum.in_place()) copy_regions(ex, *group, sum, /*back=*/true);
  }
  if (shared_.slot < 0 || store_.group_of(shared_.slot) != group->id) start_replica_sum(ex, *group);
}

void GradSink::start_replica_sum(Exec& ex, GroupState& group) {
  GroupState* const before = group_in(Phase::reducing);  // with on_reduced_, the only one
  group.phase = Phase::reducing;
  const Replicas& replicas = store_.replicas();
  if (replicas.count() == 1) {
    join_replica_sum(ex, group);
    // A CPU's caches may still hold some of the gradient.
    if (ex.device.kind() == device::DeviceKind::cpu) sum_group(ex, group);
    return;
  }
  const Tensor grad = buffers(group).grad;
  const comm::Chunk owned = buffers(group).owned;
  group.over_replicas = replicas.split_state
                            ? replicas.grads->reduce_scatter(ex, grad, grad.range(owned.begin, owned.count))
                            : replicas.grads->all_reduce(ex, grad);
  if (on_reduced_ && before != nullptr) join_replica_sum(ex, *before);
}

void GradSink::add_other(Exec& ex) {
  const Tensor own = store_.gradient(shared_.slot);
  comm::Ticket received = shared_.from->send(ex, other_);
  shared_.to->send(ex, own).join(ex);
  received.join(ex);
  ops::run(ex, ops::Add{.x = own, .other = other_, .y = own});
  start_replica_sum(ex, groups_[static_cast<size_t>(store_.group_of(shared_.slot))]);
}

void GradSink::join_replica_sum(Exec& ex, GroupState& group) {
  if (group.phase >= Phase::reduced) return;
  if (group.over_replicas.is_open()) group.over_replicas.join(ex);
  group.phase = Phase::reduced;
  if (on_reduced_) on_reduced_(ex, group.id);
}

void GradSink::end_micro(Exec& ex) {
  end_reductions(ex);
  while (!flights_.empty()) join_oldest_flight(ex);  // groups that a later pass ends have them, too
  TRAINER_CHECK(flights_.empty() && std::ranges::none_of(slots_, [](const SlotState& s) { return bool(s.outgoing); }),
                "the backward pass ended before complete() was called for a gradient");
}

GradNorm GradSink::finish(Exec& ex) {
  if (shared_.slot >= 0) add_other(ex);
  // The groups' reductions end in the order in which they started: the last group first.
  for (GroupState& group : std::views::reverse(groups_)) {
    if (!store_.has(group.id)) continue;
    join_replica_sum(ex, group);
    sum_group(ex, group);
  }
  sum_squares(ex);
  if (!ex.device.dry()) {
    const auto* blocks = on_host_.get(ex.device, blocks_).as<double>();
    own_squares_.assign(groups_.size(), 0);
    for (const GroupState& group : groups_)
      for (const NormRange& range : group.ranges)
        for (int64_t i = 0; i < norm_blocks(range.region); ++i)
          own_squares_[static_cast<size_t>(group.id)] += blocks[range.block + i];
  }
  double squares = ranks_.empty() ? std::accumulate(own_squares_.begin(), own_squares_.end(), 0.0) : 0;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    comm::Communicator& ranks = *ranks_[i];
    const Tensor all = squares_.tensor().row_range(0, ranks.size());
    const Tensor own = all.row_range(ranks.rank(), 1).reshape({all.cols()});
    if (!ex.device.dry()) ex.device.copy_to_device(own.data, own_squares_.data(), own.bytes());
    ranks.all_gather(ex, own, all.reshape({all.count()})).join(ex);
    if (ex.device.dry()) continue;
    const auto* gathered = on_host_.get(ex.device, all).as<double>();
    const bool last = i + 1 == ranks_.size();
    for (int64_t g = 0; g < all.cols(); ++g) {
      double along_axis = 0;
      double& sum = last ? squares : along_axis;
      for (int64_t rank = 0; rank < all.rows(); ++rank) sum += gathered[rank * all.cols() + g];
      own_squares_[static_cast<size_t>(g)] = along_axis;
    }
  }
  GradNorm result;
  if (ex.device.dry()) return result;
  result.norm = std::sqrt(squares);
  if (std::isfinite(squares)) return result;
  result.bad_tensor = find_first_nonfinite(ex);
  if (result.bad_tensor.empty()) result.bad_tensor = "the sum of squares (overflow)";
  return result;
}

void GradSink::sum_group(Exec& ex, GroupState& group) {
  if (std::exchange(group.phase, Phase::summed) == Phase::summed) return;
  for (const NormRange& range : group.ranges) {
    Tensor x = region_of(group, range.region);
    const bool packed = range.region.rows > 1;
    if (packed) {
      const Tensor copy = strided_.tensor().range(0, range.region.count());
      ops::run(ex, ops::Copy{x, copy.reshape(x.shape)});
      x = copy;
    }
    norms_.push_back({x, blocks_.tensor().range(range.block, norm_blocks(range.region))});
    if (packed) sum_squares(ex);  // before the next range is packed
  }
  // A CPU sums while later groups are reduced; a GPU fills better with all groups at once.
  if (ex.device.kind() == device::DeviceKind::cpu) sum_squares(ex);
}

void GradSink::sum_squares(Exec& ex) {
  ops::run(ex, ops::SquaredNorms{norms_});
  norms_.clear();
}

std::string GradSink::find_first_nonfinite(Exec& ex) {
  const auto first_here = [&]() -> std::string {
    for (size_t g = 0; g < groups_.size(); ++g) {
      const Group& group = store_.groups()[g];
      const Tensor& owned = on_host_.get(ex.device, group.grad.range(group.owned.begin, group.owned.count));
      for (size_t i = 0; i < group.params.size(); ++i) {
        const Param& param = store_.params()[static_cast<size_t>(group.params[i])];
        for (const mesh::Run& run : mesh::clip_runs(param.runs, group.owned.begin, group.owned.count)) {
          const int64_t bad = owned.dtype == DType::f64 ? first_nonfinite(owned.as<double>(), run)
                                                        : first_nonfinite(owned.as<float>(), run);
          if (bad < 0) continue;
          const bool sliced = param.shape.dims() == 3;
          const std::string slice = sliced ? format("[{}]", bad / (param.shape[1] * param.shape[2])) : "";
          return format("{:08}.{:08} {}{}", g, i, param.name, slice);
        }
      }
    }
    return {};
  };
  std::string least = first_here();
  if (!ranks_.empty())
    for (const std::string& each : store_.mesh()->host().gather(least))
      if (!each.empty() && (least.empty() || each < least)) least = each;
  return least.substr(least.find(' ') + 1);  // without the place; empty if there is none
}

}  // namespace trainer::params
