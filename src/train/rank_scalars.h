#pragma once
// RankScalars: the numbers that ranks exchange between micro-steps: sums of losses, requests to stop, choices that must
// be the same on all ranks.
#include <cstdint>
#include <optional>
#include <span>

#include "mesh/mesh.h"
#include "tensor/buffer.h"

namespace trainer::train {

class RankScalars {
 public:
  /// Along `loss_axes`, the ranks of a replica have the losses of different rows. Device, arena, meter and mesh must
  /// outlive this object.
  RankScalars(device::Device& device, Arena& arena, Meter& meter, mesh::Mesh& mesh, mesh::AxisSet loss_axes);

  /// Creates the communicators. Scalars may be exchanged at any time, so this memory is allocated at the start.
  void make_communicators();

  /// Record a step's exchanges on a dry device, which has no values: the request to stop before each micro-step, the
  /// sums of the step's losses, the scalars of the update, and sums over all ranks; `values` of them.
  void record_stop(Exec& dry) { run(dry, mesh_.shape().all(), 1, comm::Reduce::max); }
  void record_loss(Exec& dry, int64_t values) { run(dry, row_axes(), values, comm::Reduce::sum); }
  void record_update(Exec& dry, int64_t values) { run(dry, mesh_.shape().all(), values, {}); }
  void record_sum(Exec& dry, int64_t values) { run(dry, mesh_.shape().all(), values, comm::Reduce::sum); }

  // The following functions are collective and take at most kMost values unless stated. On a GPU the host waits for the
  // result.
  static constexpr int64_t kMost = 16;
  /// values ← Σ over the ranks, of all replicas, that have the losses of different rows; added in rank order. Returns
  /// the number of these ranks.
  int sum_over_rows(std::span<double> values);
  /// values ← Σ over all ranks, added in rank order.
  void sum_over_ranks(std::span<double> values) { exchange(mesh_.shape().all(), values, comm::Reduce::sum); }
  /// values ← the maximum over all ranks, element by element.
  void max_over_ranks(std::span<double> values);
  /// True if `flag` is true on any rank.
  bool is_true_on_any_rank(bool flag);
  /// values ← those of the first rank of all replicas.
  void take_from_first_rank(std::span<double> values);
  /// values ← those of the replica's first rank that has logits, which is on its last stage, on all of its ranks; any
  /// number of values. For choices that depend on rounding.
  void broadcast_in_replica(std::span<int64_t> values);
  int64_t broadcast_in_replica(int64_t value) {
    broadcast_in_replica({&value, 1});
    return value;
  }

  /// True if this is the first among its replica's ranks that have the losses of different rows. That rank contributes
  /// the values that must be counted once per replica. Not collective.
  bool is_first_of_replica() const;

 private:
  mesh::AxisSet row_axes() const;
  mesh::AxisSet replica_axes() const;
  // Without `how`, values are those of the rank `root` of the group.
  void exchange(mesh::AxisSet axes, std::span<double> values, std::optional<comm::Reduce> how, int root = 0);
  void run(Exec& ex, mesh::AxisSet axes, int64_t values, std::optional<comm::Reduce> how, int root = 0);

  device::Device& device_;
  Arena& arena_;
  Meter& meter_;
  mesh::Mesh& mesh_;
  mesh::AxisSet loss_axes_;
  Buffer values_;  // [kMost] f64
};

}  // namespace trainer::train
