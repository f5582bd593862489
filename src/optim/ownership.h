#pragma once
// Ownership: which rank orthogonalizes which hidden matrix, and which elements are sent to it and back. A value made by
// pure functions: every rank, a dry run and the planner compute the same one, so no counts are announced.
#include <cstdint>
#include <vector>

#include "ops/muon.h"
#include "params/param_table.h"

namespace trainer::optim {

/// A matrix that a single rank orthogonalizes, and where the ranks store it.
struct OwnedMatrix {
  mesh::Layout layout;         // layout of the global matrix; without the data axis, as in params::SlotPart
  mesh::BoxPosition place;     // position of the box in the slot's matrix
  int64_t slot_count = 0;      // elements of the slot's matrix, which flat axes shard
  int64_t slot_offset = 0;     // offset of the slot in the group's flat buffer
  int64_t group_elements = 0;  // size of that buffer, which ZeRO-1 divides
  int64_t slice = -1;          // the matrix is [slice, :, :] of a global tensor of three dims; -1: all of two dims
  Shape shape() const { return {layout.shape()[-2], layout.shape()[-1]}; }
};

class Ownership {
 public:
  /// `among`: the axes whose ranks share the work. Without the data axis, each replica orthogonalizes all matrices.
  /// `split_state`: ZeRO-1; `among` is then all axes. Ranks are numbered within the group along `among`, and every
  /// group has the same ownership.
  Ownership(std::vector<OwnedMatrix> matrices, mesh::AxisSet among, bool split_state);

  const std::vector<OwnedMatrix>& matrices() const { return matrices_; }
  int ranks() const { return static_cast<int>(members_.size()); }
  int owner(int matrix) const { return owners_[static_cast<size_t>(matrix)]; }
  /// Returns the matrices of a rank, in the order of their rounds.
  const std::vector<int>& owned_by(int rank) const { return lists_[static_cast<size_t>(rank)]; }
  /// In round j every rank orthogonalizes the j-th of its matrices.
  int rounds() const;
  /// Returns the matrix that a rank orthogonalizes in a round, -1 for none.
  int matrix_of(int rank, int round) const;

  /// Returns the elements of a matrix whose optimizer state `rank` stores, in ascending global order, with their
  /// offsets in the group's flat buffer.
  std::vector<mesh::Run> pieces(int matrix, int rank) const;
  /// Returns the number of these elements.
  int64_t count(int matrix, int rank) const {
    return counts_[static_cast<size_t>(matrix) * members_.size() + static_cast<size_t>(rank)];
  }
  /// True if `rank` sends its pieces to the owner. Among ranks that store the same elements it is the one with the
  /// owner's coordinates on the axes along which they are copied, so the owner never receives what it stores.
  bool sends(int matrix, int rank) const;

  /// Elements that a rank exchanges with each rank (comm::PeerCounts). Its own pieces are not sent: 0 at its own index.
  struct Counts {
    std::vector<int64_t> send, receive;
    int64_t wire = 0, longest = 0;
    comm::PeerCounts peers() const { return {send, receive, wire, longest}; }
  };
  /// Pieces to the round's owners; results from the owners to all ranks that store state.
  Counts there(int round, int rank) const;
  Counts back(int round, int rank) const;

 private:
  void assign();
  template <typename Moved>
  Counts counts(int round, int rank, bool back, Moved moved) const;
  int64_t stored(const OwnedMatrix& matrix, int rank) const;
  /// Returns what `rank` stores of the flat buffer's optimizer state.
  comm::Chunk held(const OwnedMatrix& matrix, int rank) const;

  std::vector<OwnedMatrix> matrices_;
  std::vector<int> members_;             // world ranks of the first group, by rank
  mesh::AxisSet data_ = 0;               // the axis over which ZeRO-1 divides the state; none without ZeRO-1
  std::vector<int> owners_;              // by matrix
  std::vector<std::vector<int>> lists_;  // matrices by rank
  std::vector<int64_t> counts_;          // by matrix and rank
};

/// Return the strips that move pieces between a message, in which they begin at `place`, and the flat buffer that
/// stores them, or the row-major matrix. Long runs are divided, so that threads share them.
std::vector<ops::Strip> buffer_strips(const std::vector<mesh::Run>& pieces, int64_t place);
std::vector<ops::Strip> matrix_strips(const std::vector<mesh::Run>& pieces, int64_t place);

}  // namespace trainer::optim
