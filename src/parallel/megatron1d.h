#pragma once
// Megatron-1D: tensor parallelism over one axis (Shoeybi et al. 2019), with sequence parallelism (Korthikanti et al.
// 2022). Each of T ranks has 1/T of the columns of linears that read the residual stream. Of linears that write it, it
// has 1/T of the rows. It has 1/T of the attention heads and of the vocabulary too. The residual stream is on all
// ranks, or with sequence parallelism cut by token rows.
//
//   rows of a batch N, hidden H            without                with sequence parallelism
//   residual stream, norms                 [N, H]                 [N/T, H], rank r has rows r·N/T …
//   out:       weight [H, F/T]             x [N, H]               x gathered before the product
//     backward                             Σ dx  (all-reduce)     x gathered again, dx reduce-scattered
//   back:      weight [F/T, H]             Σ y   (all-reduce)     y reduce-scattered
//     backward                             nothing                dy gathered
//
// Elements a micro-batch passes to collectives over the axis, forward and backward, L layers, B = N·H, no
// recomputation:
//   without: all-reduce (4L + 2)·B + 3N
//   with:    all-gather (6L + 2)·B, reduce-scatter (4L + 2)·B, all-reduce 3N; and once a step an all-reduce of what
//            each rank has summed over its own rows: gains and biases of norms, biases of linears that write the
//            stream, positions.
// Where ranks share key/value heads, gradients of their weights and biases are added over those ranks once a step.
// The head gathers its input once for loss and gradients together, where a head with a separate backward pass would do
// so twice. Full recomputation adds per layer the collectives of the forward pass but the last one, whose result
// nobody needs.
#include "parallel/strategy.h"

namespace trainer::parallel {

class Megatron1D final : public Strategy {
 public:
  /// "data" × "tensor". When the axis has more ranks than there are key/value heads, it is "kv" × "rep" with "tensor"
  /// for both. Ranks along "rep" share a key/value head.
  static mesh::MeshShape mesh_shape(int world, int tensor, int64_t kv_heads);

  /// Axis is the tensor axis as its linears see it.
  struct Axis {
    ParamStore& store;
    comm::Communicator& ranks;      // activations; ordered on lane `critical`
    AxisSet axes, kv = 0, rep = 0;  // kv and rep empty when key/value heads divide over all
    bool sequence_parallel;
    bool overlap;  // false: every collective is waited for at once, to see what it costs

    int64_t size() const { return ranks.size(); }
    bool splits(Rows rows) const { return sequence_parallel && rows.cut; }
    Spread stream() const { return {.rows = sequence_parallel ? axes : AxisSet{0}}; }
    /// Returns a started collective's ticket; joins it first unless `overlap`.
    comm::Ticket wait_unless_overlapping(Exec& ex, comm::Ticket ticket) const;
    /// Reduces a partial sum [N, C] to this rank's part of the residual stream. That is all rows by all_reduce, or with
    /// sequence parallelism its own rows by reduce_scatter.
    Scratch reduce_to_stream(Exec& ex, Rows rows, Scratch partial) const;
    /// Gathers shard [N/T, C] → [N, C].
    Scratch gather_rows(Exec& ex, const Tensor& shard) const;
  };

  Megatron1D(const Axis& axis, const Ranks& ranks) : Strategy(axis.store, ranks), axis_(axis) {}
  Megatron1D(mesh::Mesh& mesh, ParamStore& store, bool sequence_parallel, bool overlap);

  Spread stream(int) const override { return axis_.stream(); }
  Spread attention(int) const override { return {.cols = axis_.axes}; }
  VocabSpread vocab() const override { return {.vocab = axis_.axes}; }
  std::unique_ptr<Linear> linear(int layer, int group, const LinearSpec& spec) override;

 private:
  const Axis axis_;
};

}  // namespace trainer::parallel
