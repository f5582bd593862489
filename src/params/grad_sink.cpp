#include "params/grad_sink.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/activation.h"
#include "ops/adamw.h"
#include "ops/elementwise.h"

namespace trainer::params {
namespace {

template <typename T>
bool any_nonfinite(const T* values, const mesh::Run& run) {
  for (int64_t i = 0; i < run.length; ++i)
    if (!std::isfinite(values[run.local + i * run.stride])) return true;
  return false;
}

int64_t norm_blocks(const Region& region) { return divide_up(region.count(), ops::kNormBlock); }

}  // namespace

GradSink::GradSink(ParamStore& store, const Options& options)
    : store_(store),
      written_(static_cast<size_t>(store.slots())),
      placed_(store.slot_groups().size()),
      outgoing_(static_cast<size_t>(store.slots())),
      sums_(store.slot_groups().size()),
      replica_sums_(store.slot_groups().size()),
      reduced_(store.slot_groups().size()),
      summed_(store.slot_groups().size()),
      pieces_(store.slot_groups().size()),
      options_(options) {
  flights_.reserve(kMostFlights);
}

void GradSink::prepare(device::Device& device) {
  int64_t blocks = 0, largest_strided = 0;
  for (int g = 0; g < static_cast<int>(pieces_.size()); ++g) {
    // Blocks restart at the beginning of each replica's chunk, whether or not the optimizer state is sharded.
    for (const Region& region : store_.counted_regions(g))
      for (const Region& piece : clip(region, store_.groups()[static_cast<size_t>(g)].owned)) {
        pieces_[static_cast<size_t>(g)].push_back({piece, blocks});
        blocks += norm_blocks(piece);
        if (piece.rows > 1) largest_strided = std::max(largest_strided, piece.count());
      }
    for (ParamStore::Sum& sum : store_.sums_of(g)) {
      Sum& own = sums_[static_cast<size_t>(g)].emplace_back(
          Sum{&store_.mesh()->along(sum.axes, comm::Purpose::grads), sum.sharded, std::move(sum.regions), {}, {}});
      int64_t count = 0;
      for (const Region& region : own.regions) count += region.count();
      if (!own.in_place()) own.packed = Buffer(device, "gradients", {count}, store_.state_dtype());
    }
  }
  size_t pieces = 0;
  for (const auto& of_group : pieces_) pieces += of_group.size();
  norms_.reserve(pieces);
  if (largest_strided > 0) strided_ = Buffer(device, "gradients", {largest_strided}, store_.state_dtype());
  blocks_ = Buffer(device, "gradients", {blocks}, DType::f64);
  const mesh::MeshShape& mesh = store_.mesh_shape();
  int64_t longest = 1;
  for (int axis = mesh.axes() - 1; axis >= 0; --axis) {
    if (mesh.size(axis) == 1) continue;
    const bool all = mesh.size(axis) == mesh.world_size();  // then there is a communicator already
    ranks_.push_back(&store_.mesh()->along(all ? mesh.all() : mesh::AxisSet{1} << axis, comm::Purpose::control));
    longest = std::max<int64_t>(longest, mesh.size(axis));
  }
  squares_ = Buffer(device, "gradients", {longest, static_cast<int64_t>(pieces_.size())}, DType::f64);
  bad_ = Buffer(device, "gradients", {1}, DType::f64);
}

Tensor GradSink::region_of(int group, const Region& region) const {
  const Tensor grad = store_.groups()[static_cast<size_t>(group)].grad;
  if (region.rows == 1) return grad.range(region.offset, region.cols);
  Tensor matrix = grad.range(region.offset, (region.rows - 1) * region.pitch + region.cols);
  matrix.shape = {region.rows, region.cols};
  matrix.pitch = region.pitch;
  return matrix;
}

void GradSink::begin_step() {
  std::fill(written_.begin(), written_.end(), char{0});
  std::fill(reduced_.begin(), reduced_.end(), char{0});
  std::fill(summed_.begin(), summed_.end(), char{0});
  std::fill(placed_.begin(), placed_.end(), char{0});
  completed_ = -1;
}

GradSlot GradSink::slot(Exec& ex, SlotId id) {
  if (!store_.is_sharded(id)) return stored_slot(ex, id);
  GradSlot slot;
  Scratch& block = outgoing_[static_cast<size_t>(id)];
  slot.accumulate = static_cast<bool>(block);
  if (!block) {
    while (flights_.size() >= kMostFlights) join_oldest_flight(ex);
    block = ex.take("gradient.outgoing", store_.box(id), store_.state_dtype());
  }
  slot.tensor = block;
  return slot;
}

void GradSink::complete(Exec& ex, SlotId id) {
  if (!store_.is_sharded(id)) return;
  Scratch block = std::move(outgoing_[static_cast<size_t>(id)]);
  TRAINER_CHECK(block, "complete() of slot {} must follow a write of its gradient", id);
  comm::Communicator& group = store_.mesh()->along(store_.flat_axes(id), comm::Purpose::grads);
  place(ex, id);
  const Tensor home = store_.gradient(id), flat = block.tensor().reshape({block.tensor().count()});
  const bool accumulate = std::exchange(written_[static_cast<size_t>(id)], char{1}) != 0;
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

void GradSink::place(Exec& ex, SlotId id) {
  const int group = store_.group_of(id);
  if (std::exchange(placed_[static_cast<size_t>(group)], char{1}) == 0) store_.place_gradient(ex, group);
}

GradSlot GradSink::stored_slot(Exec& ex, SlotId id) {
  place(ex, id);
  GradSlot slot;
  slot.tensor = store_.gradient(id);
  slot.accumulate = std::exchange(written_[static_cast<size_t>(id)], char{1}) != 0;
  return slot;
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

void GradSink::end_group(Exec& ex, int group) {
  start_replica_sum(ex);
  finished_ = group;
  start_sums(ex, /*sharded=*/false);
  if (!has_gradient_in_flight(group) && sums_[static_cast<size_t>(group)].empty()) start_replica_sum(ex);
}

void GradSink::start_sums(Exec& ex, bool sharded) {
  if (!last_) return;
  for (Sum& sum : sums_[static_cast<size_t>(finished_)]) {
    if (sum.sharded != sharded) continue;
    if (sum.in_place()) {
      sum.ticket = sum.group->all_reduce(ex, region_of(finished_, sum.regions.front()));
      continue;
    }
    int64_t at = 0;
    for (const Region& region : sum.regions) {
      const Tensor partial = region_of(finished_, region);
      ops::run(ex, ops::Copy{partial, sum.packed.tensor().range(at, region.count()).reshape(partial.shape)});
      at += region.count();
    }
    sum.ticket = sum.group->all_reduce(ex, sum.packed);
  }
}

void GradSink::start_replica_sum(Exec& ex) {
  if (finished_ < 0) return;
  while (has_gradient_in_flight(finished_)) join_oldest_flight(ex);
  start_sums(ex, /*sharded=*/true);  // all-reduces shards whose reduce-scatter has just ended
  const int index = std::exchange(finished_, -1);
  if (!last_) return;
  for (Sum& sum : sums_[static_cast<size_t>(index)]) {
    sum.ticket.join(ex);
    if (sum.in_place()) continue;
    int64_t at = 0;
    for (const Region& region : sum.regions) {
      const Tensor total = region_of(index, region);
      ops::run(ex, ops::Copy{sum.packed.tensor().range(at, region.count()).reshape(total.shape), total});
      at += region.count();
    }
  }
  const Replicas& replicas = store_.replicas();
  const Group& group = store_.groups()[static_cast<size_t>(index)];
  const Tensor grad = group.grad;
  if (replicas.count() > 1)
    replica_sums_[static_cast<size_t>(index)] =
        replicas.split_state
            ? replicas.grads->reduce_scatter(ex, grad, grad.range(group.owned.begin, group.owned.count))
            : replicas.grads->all_reduce(ex, grad);
  // The gradient is complete, and a CPU's caches may still hold some of it.
  if (replicas.count() == 1 && ex.device.kind() == device::DeviceKind::cpu) sum_group(ex, static_cast<size_t>(index));
  const int before = std::exchange(completed_, index);
  if (!on_reduced_) return;
  if (before >= 0) join_replica_sum(ex, before);
  if (replicas.count() == 1) join_replica_sum(ex, index);
}

void GradSink::join_replica_sum(Exec& ex, int group) {
  const auto g = static_cast<size_t>(group);
  if (std::exchange(reduced_[g], char{1}) != 0) return;
  if (replica_sums_[g].is_open()) replica_sums_[g].join(ex);
  if (on_reduced_) on_reduced_(ex, group);
}

void GradSink::end_micro(Exec& ex) {
  start_replica_sum(ex);
  TRAINER_CHECK(flights_.empty() && std::ranges::none_of(outgoing_, [](const Scratch& s) { return bool(s); }),
                "the backward pass ended before complete() was called for a gradient");
}

GradNorm GradSink::finish(Exec& ex) {
  // The groups' reductions end in the order in which they started: the last group first.
  for (size_t g = pieces_.size(); g-- > 0;) {
    join_replica_sum(ex, static_cast<int>(g));
    sum_group(ex, g);
  }
  sum_squares(ex);
  if (!ex.device.dry()) {
    const Tensor& blocks = on_host_.get(ex.device, blocks_);
    own_squares_.resize(pieces_.size());
    for (size_t g = 0; g < pieces_.size(); ++g) own_squares_[g] = sum_of_blocks(blocks, pieces_[g]);
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
  if (!std::isfinite(squares)) {
    comm::Communicator* ranks =
        ranks_.empty() ? nullptr : &store_.mesh()->along(store_.mesh_shape().all(), comm::Purpose::control);
    const int64_t bad = find_first_nonfinite(ex, ranks);
    result.bad_tensor = bad < static_cast<int64_t>(store_.params().size())
                            ? store_.params()[static_cast<size_t>(bad)].name
                            : "the sum of squares (overflow)";
  }
  return result;
}

void GradSink::sum_group(Exec& ex, size_t g) {
  if (std::exchange(summed_[g], char{1}) != 0) return;
  for (const Piece& piece : pieces_[g]) {
    Tensor x = region_of(static_cast<int>(g), piece.region);
    const bool packed = piece.region.rows > 1;
    if (packed) {
      const Tensor copy = strided_.tensor().range(0, piece.region.count());
      ops::run(ex, ops::Copy{x, copy.reshape(x.shape)});
      x = copy;
    }
    norms_.push_back({x, blocks_.tensor().range(piece.block, norm_blocks(piece.region))});
    if (packed) sum_squares(ex);  // before the next piece is packed
  }
  // A CPU sums while later groups are reduced; a GPU fills better with all groups at once.
  if (ex.device.kind() == device::DeviceKind::cpu) sum_squares(ex);
}

void GradSink::sum_squares(Exec& ex) {
  ops::run(ex, ops::SquaredNorms{norms_});
  norms_.clear();
}

double GradSink::sum_of_blocks(const Tensor& blocks, const std::vector<Piece>& pieces) {
  double sum = 0;
  for (const Piece& piece : pieces)
    for (int64_t i = 0; i < norm_blocks(piece.region); ++i) sum += blocks.as<double>()[piece.block + i];
  return sum;
}

int64_t GradSink::find_first_nonfinite(Exec& ex, comm::Communicator* ranks) {
  const auto params = static_cast<int64_t>(store_.params().size());
  int64_t first = 0;
  for (; first < params; ++first) {
    const Param& param = store_.params()[static_cast<size_t>(first)];
    const Group& group = store_.groups()[static_cast<size_t>(param.group)];
    const Tensor& owned = on_host_.get(ex.device, group.grad.range(group.owned.begin, group.owned.count));
    const auto bad = [&](const mesh::Run& run) {
      return owned.dtype == DType::f64 ? any_nonfinite(owned.as<double>(), run) : any_nonfinite(owned.as<float>(), run);
    };
    if (std::ranges::any_of(mesh::clip_runs(param.runs, group.owned.begin, group.owned.count), bad)) break;
  }
  if (ranks == nullptr) return first;
  double least = -static_cast<double>(first);
  ex.device.copy_to_device(bad_.tensor().data, &least, sizeof(least));
  ranks->all_reduce(ex, bad_, comm::Reduce::max).join(ex);
  ex.device.copy_to_host(&least, bad_.tensor().data, sizeof(least));
  return static_cast<int64_t>(-least);
}

}  // namespace trainer::params
