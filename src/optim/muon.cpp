#include "optim/muon.h"

#include <algorithm>

#include "config/resolve.h"
#include "ops/muon.h"
#include "optim/elementwise.h"
#include "optim/ownership.h"

namespace trainer::optim {
namespace {

/// The matrices of a selection in the order of declaration, and the group of each.
struct Hidden {
  std::vector<OwnedMatrix> matrices;
  std::vector<size_t> groups;
};
Hidden hidden_matrices(const params::ParamTable& table) {
  Hidden hidden;
  for (params::SlotId slot = 0; slot < table.slots(); ++slot) {
    const Shape box = table.box(slot);
    const auto group = static_cast<size_t>(table.group_of(slot));
    int64_t column = 0;
    for (const params::SlotPart& part : table.parts_of(slot)) {
      const Shape& shape = part.layout.shape();
      const bool sliced = shape.dims() == 3;  // E matrices
      for (int64_t i = 0; part.hidden && part.whole_matrix && i < (sliced ? shape[0] : 1); ++i) {
        hidden.matrices.push_back({.layout = part.layout,
                                   .place = {.offset = column, .pitch = box[-1]},
                                   .slot_count = box.count(),
                                   .slot_offset = table.range_of(slot).offset,
                                   .group_elements = table.slot_groups()[group].elements,
                                   .slice = sliced ? i : -1});
        hidden.groups.push_back(group);
      }
      column += part.layout.box()[-1];
    }
  }
  return hidden;
}

/// Strips in device memory.
class Strips {
 public:
  Strips() = default;
  Strips(device::Device& device, const std::vector<ops::Strip>& list) {
    static_assert(sizeof(ops::Strip) == 4 * sizeof(int64_t));
    for (const ops::Strip& strip : list) count_ += strip.length;
    if (list.empty()) return;
    memory_ = Buffer(device, "optimizer_index", {static_cast<int64_t>(list.size()), 4}, DType::i64);
    if (device.dry()) return;
    device.copy_to_device(memory_.tensor().data, list.data(), memory_.tensor().bytes());
    device.synchronize();
  }
  int64_t count() const { return count_; }  // elements
  const Tensor& tensor() const { return memory_.tensor(); }

 private:
  Buffer memory_;
  int64_t count_ = 0;
};

/// This rank's part of a matrix that a different rank orthogonalizes: flat buffer ↔ message.
struct Stored {
  size_t group = 0;
  bool sends = false;  // the owner receives these elements from this rank
  double scale = 1;
  Strips strips;
};
/// The elements that another rank stores of this rank's matrix: whole matrix ↔ message.
struct Other {
  bool sends = false;
  Strips strips;
};
struct Round {
  Ownership::Counts there, back;
  std::vector<Stored> stored;  // by owner
  int matrix = -1;             // index of the matrix that this rank orthogonalizes
  size_t group = 0;
  Shape shape;
  Strips own;                 // flat buffer ↔ whole matrix
  std::vector<Other> others;  // by rank
};

class MuonUpdater final : public Updater {
 public:
  MuonUpdater(const Muon& rule, params::ParamStore& store, Selection selection)
      : rule_(rule), store_(store), selection_(std::move(selection)) {
    const Hidden hidden = hidden_matrices(store);
    const mesh::MeshShape& mesh = store.mesh_shape();
    const bool split = store.replicas().split_state;
    const bool apart = rule.config().owners == config::MuonOwners::replica && mesh.has("data") && !split;
    mesh::AxisSet left_out = apart ? mesh.set("data") : 0;
    if (mesh.has("stage")) left_out |= mesh.set("stage");  // stages have different matrices
    mesh::AxisSet among = 0;
    for (int axis = 0; axis < mesh.axes(); ++axis)
      if (mesh.size(axis) > 1) among |= (mesh::AxisSet{1} << axis) & ~left_out;
    const Ownership ownership(hidden.matrices, among, split);
    if (ownership.ranks() > 1) ranks_ = &store.mesh()->along(among, comm::Purpose::grads);
    const int here = ranks_ == nullptr ? 0 : ranks_->rank();
    for (int round = 0; round < ownership.rounds(); ++round) add_round(hidden, ownership, round, here);
  }

  void start(Exec& ex, const Update& update) override {
    for (size_t g = 0; g < store_.groups().size(); ++g) {
      const params::Group& group = store_.groups()[g];
      selection_.each(static_cast<int>(g), group.held, [&](comm::Chunk part, ParamClass) {
        ops::run(ex, ops::MuonMomentum{.m = group.state("momentum", part),
                                       .g = group.grad.range(part.begin, part.count),
                                       .momentum = rule_.config().momentum,
                                       .gradient_scale = update.gradient_scale,
                                       .nesterov = rule_.config().nesterov});
      });
    }
    if (!rounds_.empty()) send(ex, 0);
  }

  void finish(Exec& ex, const Update& update, int index) override {
    if (index == 0) orthogonalize_all(ex);
    const params::Group& group = store_.groups()[static_cast<size_t>(index)];
    using K = ops::rules::Sgd;
    double scalars[K::scalars] = {};
    scalars[K::nstep] = -update.lr * rule_.config().lr_ratio;
    scalars[K::nwd] = -update.lr * rule_.config().weight_decay;
    scalars[K::floor] = rule_.floor();
    selection_.each(index, group.held, [&](comm::Chunk part, ParamClass) {
      ops::run(ex, ops::Update{.rule = ops::RuleId::Sgd,
                               .p = group.master_of(part),
                               .states = {},
                               .g = group.grad.range(part.begin, part.count),
                               .compute = group.compute.tensor().range(part.begin, part.count),
                               .scalars = scalars});
    });
  }

 private:
  /// An exchange in flight, with its messages.
  struct Flight {
    Scratch sent, received;
    comm::Ticket ticket;
  };

  void add_round(const Hidden& hidden, const Ownership& ownership, int index, int here) {
    Round& round = rounds_.emplace_back();
    round.there = ownership.there(index, here);
    round.back = ownership.back(index, here);
    device::Device& device = store_.device();
    for (int rank = 0; rank < ownership.ranks(); ++rank) {
      const int matrix = ownership.matrix_of(rank, index);
      if (matrix < 0) continue;
      const OwnedMatrix& owned = ownership.matrices()[static_cast<size_t>(matrix)];
      const size_t group = hidden.groups[static_cast<size_t>(matrix)];
      if (rank != here) {
        Stored stored{group,
                      ownership.sends(matrix, here),
                      rule_.scale_of(owned.shape()),
                      {device, buffer_strips(ownership.pieces(matrix, here), 0)}};
        if (stored.strips.count() > 0) round.stored.push_back(std::move(stored));
        continue;
      }
      round.matrix = matrix;
      round.group = group;
      round.shape = owned.shape();
      for (int other = 0; other < ownership.ranks(); ++other) {
        if (other == here) continue;
        Other stored{ownership.sends(matrix, other), {device, matrix_strips(ownership.pieces(matrix, other), 0)}};
        if (stored.strips.count() > 0) round.others.push_back(std::move(stored));
      }
      std::vector<ops::Strip> own;  // their place in the "message" is that in the whole matrix
      for (const mesh::Run& run : ownership.pieces(matrix, here))
        for (const ops::Strip& strip : buffer_strips({run}, run.global)) own.push_back(strip);
      round.own = Strips(device, own);
    }
  }

  Tensor gradient(size_t group) const { return store_.groups()[group].grad; }

  /// Starts an exchange; its messages are filled by fill(message).
  template <typename Fill>
  void exchange(Exec& ex, Flight& flight, const Ownership::Counts& counts, Fill&& fill) {
    if (ranks_ == nullptr) return;
    const auto message = [&](std::string_view tag, const std::vector<int64_t>& elements) {
      int64_t sum = 0;
      for (const int64_t each : elements) sum += each;
      return ex.take(tag, {sum}, rule_.type());
    };
    flight.sent = message("muon.sent", counts.send);
    flight.received = message("muon.received", counts.receive);
    fill(flight.sent.tensor());
    flight.ticket = ranks_->all_to_all(ex, flight.sent, flight.received, counts.peers());
    if (!rule_.overlaps()) flight.ticket.join(ex);
  }
  void join(Exec& ex, Flight& flight) {
    if (flight.ticket.is_open()) flight.ticket.join(ex);
    flight.sent.reset();
  }

  /// Sends this rank's pieces to the owners of a round.
  void send(Exec& ex, size_t index) {
    const Round& round = rounds_[index];
    exchange(ex, there_[index % 2], round.there, [&](const Tensor& message) {
      int64_t at = 0;
      for (const Stored& stored : round.stored) {
        if (!stored.sends) continue;
        ops::run(ex, ops::GatherStrips{.flat = gradient(stored.group),
                                       .strips = stored.strips.tensor(),
                                       .packed = message.range(at, stored.strips.count())});
        at += stored.strips.count();
      }
    });
  }

  /// Returns this rank's matrix of a round once all of its pieces have arrived; empty if it has none.
  Scratch assemble(Exec& ex, size_t index) {
    const Round& round = rounds_[index];
    Flight& flight = there_[index % 2];
    Scratch matrix;
    if (round.matrix >= 0) matrix = ex.take("muon.matrix", round.shape, rule_.type());
    join(ex, flight);
    if (round.matrix >= 0) {
      const Tensor all = matrix.tensor().reshape({round.shape.count()});
      if (round.own.count() > 0)
        ops::run(ex, ops::GatherStrips{.flat = gradient(round.group), .strips = round.own.tensor(), .packed = all});
      int64_t at = 0;
      for (const Other& other : round.others) {
        if (!other.sends) continue;
        ops::run(ex, ops::ScatterStrips{.packed = flight.received.tensor().range(at, other.strips.count()),
                                        .strips = other.strips.tensor(),
                                        .flat = all});
        at += other.strips.count();
      }
    }
    flight.received.reset();
    return matrix;
  }

  /// Sends the orthogonalized matrix of a round to the ranks that store it.
  void reply(Exec& ex, size_t index, const Scratch& matrix) {
    const Round& round = rounds_[index];
    const Tensor all = round.matrix < 0 ? Tensor{} : matrix.tensor().reshape({round.shape.count()});
    exchange(ex, back_[index % 2], round.back, [&](const Tensor& message) {
      int64_t at = 0;
      for (const Other& other : round.others) {
        ops::run(ex,
                 ops::GatherStrips{
                     .flat = all, .strips = other.strips.tensor(), .packed = message.range(at, other.strips.count())});
        at += other.strips.count();
      }
    });
    if (round.own.count() > 0)
      ops::run(ex, ops::ScatterStrips{.packed = all,
                                      .strips = round.own.tensor(),
                                      .flat = gradient(round.group),
                                      .scale = rule_.scale_of(round.shape)});
  }

  /// Stores what arrived in a round, in place of the gradients.
  void receive(Exec& ex, size_t index) {
    const Round& round = rounds_[index];
    Flight& flight = back_[index % 2];
    join(ex, flight);
    int64_t at = 0;
    for (const Stored& stored : round.stored) {
      ops::run(ex, ops::ScatterStrips{.packed = flight.received.tensor().range(at, stored.strips.count()),
                                      .strips = stored.strips.tensor(),
                                      .flat = gradient(stored.group),
                                      .scale = stored.scale});
      at += stored.strips.count();
    }
    flight.received.reset();
  }

  /// Replaces the directions in the gradients' buffers by their orthogonalized matrices, scaled.
  void orthogonalize_all(Exec& ex) {
    for (size_t i = 0; i < rounds_.size(); ++i) {
      if (i + 1 < rounds_.size()) send(ex, i + 1);
      Scratch matrix = assemble(ex, i);
      if (rounds_[i].matrix >= 0) orthogonalize(ex, matrix, rule_.iterations());
      reply(ex, i, matrix);
      matrix.reset();
      if (i > 0) receive(ex, i - 1);
    }
    if (!rounds_.empty()) receive(ex, rounds_.size() - 1);
  }

  const Muon& rule_;
  params::ParamStore& store_;
  const Selection selection_;
  comm::Communicator* ranks_ = nullptr;  // null: this rank orthogonalizes all matrices
  std::vector<Round> rounds_;
  std::vector<Flight> there_ = std::vector<Flight>(2), back_ = std::vector<Flight>(2);  // messages of two rounds
};

}  // namespace

Muon::Muon(const config::Config& config, DType compute)
    : muon_(config.muon),
      state_(accumulator_of(compute)),
      type_(config::type_of(config.muon.compute).value_or(compute)),
      overlaps_(config.debug.overlap),
      floor_(floor_of(config.optim.decay)) {}

int64_t Muon::traffic() const {
  // Momentum reads and writes m and g, the exchange reads and writes g and X, the update reads o, reads and writes p.
  return 9 * size_of(state_) + 2 * size_of(type_);
}

std::unique_ptr<Updater> Muon::make(params::ParamStore& store, Selection selection) const {
  return std::make_unique<MuonUpdater>(*this, store, std::move(selection));
}

}  // namespace trainer::optim
