#include "optim/ownership.h"

#include <algorithm>
#include <numeric>

#include "optim/orthogonalize.h"

namespace trainer::optim {

namespace {

template <typename Where>
std::vector<ops::Strip> strips_of(const std::vector<mesh::Run>& pieces, int64_t place, Where where) {
  std::vector<ops::Strip> strips;
  for (const mesh::Run& run : pieces)
    for (int64_t done = 0; done < run.length; done += ops::kStripElements) {
      const auto [begin, stride] = where(run);
      const int64_t length = std::min(ops::kStripElements, run.length - done);
      strips.push_back({begin + done * stride, place, length, stride});
      place += length;
    }
  return strips;
}

}  // namespace

std::vector<ops::Strip> buffer_strips(const std::vector<mesh::Run>& pieces, int64_t place) {
  return strips_of(pieces, place, [](const mesh::Run& run) { return std::pair(run.local, run.stride); });
}
std::vector<ops::Strip> matrix_strips(const std::vector<mesh::Run>& pieces, int64_t place) {
  return strips_of(pieces, place, [](const mesh::Run& run) { return std::pair(run.global, int64_t{1}); });
}

Ownership::Ownership(std::vector<OwnedMatrix> matrices, mesh::AxisSet among, bool split_state)
    : matrices_(std::move(matrices)), members_{0} {
  if (!matrices_.empty()) {
    const mesh::MeshShape& mesh = matrices_.front().layout.mesh();
    members_ = mesh.members(0, among);
    if (split_state && mesh.has("data")) data_ = mesh.set("data");
    // `among` may lack axes of one rank: "data" combines replicas and depth in 2.5D, and either may be 1.
    TRAINER_CHECK(mesh.group_size(data_ & ~among) == 1,
                  "with ZeRO-1 the replicas share the orthogonalization: {} lacks the axis data", mesh.name_of(among));
    data_ &= among;
  }
  for (const OwnedMatrix& matrix : matrices_) {
    TRAINER_CHECK(
        matrix.layout.shape().dims() == (matrix.slice < 0 ? 2 : 3) && matrix.layout.extents() == matrix.layout.shape(),
        "only matrices without padding can be orthogonalized, not {}", mesh::to_string(matrix.layout));
    for (int rank = 0; rank < ranks(); ++rank) counts_.push_back(stored(matrix, rank));
  }
  assign();
}

void Ownership::assign() {
  owners_.resize(matrices_.size());
  lists_.resize(members_.size());
  std::vector<int64_t> costs, loads(members_.size());
  for (const OwnedMatrix& matrix : matrices_) costs.push_back(orthogonalize_flops(matrix.shape(), 1));
  std::vector<size_t> order(matrices_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t matrix) { return costs[matrix]; });
  for (const size_t matrix : order) {  // longest processing time first (Graham 1969)
    const auto least = static_cast<size_t>(std::ranges::min_element(loads) - loads.begin());
    owners_[matrix] = static_cast<int>(least);
    lists_[least].push_back(static_cast<int>(matrix));
    loads[least] += costs[matrix];
  }
}

int Ownership::rounds() const {
  size_t longest = 0;
  for (const std::vector<int>& list : lists_) longest = std::max(longest, list.size());
  return static_cast<int>(longest);
}

int Ownership::matrix_of(int rank, int round) const {
  const std::vector<int>& list = owned_by(rank);
  return static_cast<size_t>(round) < list.size() ? list[static_cast<size_t>(round)] : -1;
}

comm::Chunk Ownership::held(const OwnedMatrix& matrix, int rank) const {
  const mesh::MeshShape& mesh = matrix.layout.mesh();
  return comm::chunk_of(matrix.group_elements, mesh.group_size(data_),
                        mesh.index(members_[static_cast<size_t>(rank)], data_));
}

std::vector<mesh::Run> Ownership::pieces(int index, int rank) const {
  const OwnedMatrix& matrix = matrices_[static_cast<size_t>(index)];
  std::vector<mesh::Run> runs = matrix.layout.runs(members_[static_cast<size_t>(rank)], matrix.place, matrix.slice);
  const int64_t first = std::max<int64_t>(0, matrix.slice) * matrix.shape().count();
  for (mesh::Run& run : runs) {
    run.global -= first;
    run.local += matrix.slot_offset;
  }
  if (data_ == 0) return runs;
  const comm::Chunk chunk = held(matrix, rank);
  runs = mesh::clip_runs(runs, chunk.begin, chunk.count);
  for (mesh::Run& run : runs) run.local += chunk.begin;
  return runs;
}

/// The number of elements in pieces(), without listing them: a plan counts thousands of ranks.
int64_t Ownership::stored(const OwnedMatrix& matrix, int rank) const {
  const mesh::Layout& layout = matrix.layout;
  const mesh::MeshShape& mesh = layout.mesh();
  const Shape box = layout.box();
  const mesh::AxisSet flat = layout.axes(mesh::kFlat);
  const comm::Chunk shard =
      comm::chunk_of(matrix.slot_count, mesh.group_size(flat), mesh.index(members_[static_cast<size_t>(rank)], flat));
  const comm::Chunk chunk = held(matrix, rank);
  int64_t count = 0;
  const int64_t rows = box[-2], cols = box[-1], pitch = matrix.place.pitch == 0 ? cols : matrix.place.pitch;
  int64_t local = 0;  // index of the slice in the rank's box
  if (matrix.slice >= 0) {
    local = matrix.slice - box[0] * mesh.index(members_[static_cast<size_t>(rank)], layout.axes(mesh::split(0)));
    if (local < 0 || local >= box[0]) return 0;
  }
  const int64_t offset = matrix.place.offset + local * rows * pitch;
  for (const params::Region& region : params::clip({offset, rows, cols, pitch}, shard)) {
    params::Region stored = region;
    stored.offset += matrix.slot_offset - shard.begin;
    for (const params::Region& part : params::clip(stored, chunk)) count += part.count();
  }
  return count;
}

bool Ownership::sends(int index, int rank) const {
  const mesh::Layout& layout = matrices_[static_cast<size_t>(index)].layout;
  const mesh::AxisSet copied = layout.axes(mesh::kReplicate) & ~data_;
  const auto coordinates = [&](int of) { return layout.mesh().index(members_[static_cast<size_t>(of)], copied); };
  return coordinates(rank) == coordinates(owner(index));
}

template <typename Moved>
Ownership::Counts Ownership::counts(int round, int rank, bool back, Moved moved) const {
  Counts all{std::vector<int64_t>(members_.size()), std::vector<int64_t>(members_.size())};
  for (int owner = 0; owner < ranks(); ++owner) {
    const int matrix = matrix_of(owner, round);
    for (int other = 0; matrix >= 0 && other < ranks(); ++other) {
      if (other == owner) continue;
      const int64_t elements = moved(matrix, other);
      all.wire += elements;
      all.longest = std::max(all.longest, elements);
      const int from = back ? owner : other, to = back ? other : owner;
      if (from == rank) all.send[static_cast<size_t>(to)] = elements;
      if (to == rank) all.receive[static_cast<size_t>(from)] = elements;
    }
  }
  return all;
}

Ownership::Counts Ownership::there(int round, int rank) const {
  return counts(round, rank, false,
                [&](int matrix, int from) { return sends(matrix, from) ? count(matrix, from) : 0; });
}

Ownership::Counts Ownership::back(int round, int rank) const {
  return counts(round, rank, true, [&](int matrix, int to) { return count(matrix, to); });
}

}  // namespace trainer::optim
