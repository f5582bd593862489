#pragma once
// The embedding and the output head of every strategy. The rows of their table [V, H] may be split over some axes, its
// columns over others, and it may be stored in flat shards. Activations may be in any spread.
//
//   Axes: R splits the activations' rows, C their columns; V, H and F are those of the table (VocabSpread).
//   At the table, rows are split over the axes of R and F that are not in V or H, and columns over H:
//     embedding   looks up this rank's tokens; other tokens are zero, so reducing over V is exact; → [R, C]
//     head        x is gathered; logits reduced over H; cross-entropy over V (loss.h); dx reduced over V; → [R, C]
//   Gradients of the table are partial sums along these row axes. They are reduce-scattered over F, and
//   all-reduced over the other axes once per step. At the head, F must be within R.

#include "ops/embedding.h"
#include "parallel/batch.h"
#include "params/grad_sink.h"

namespace trainer::parallel {

/// The parameter of the embedding's table.
inline constexpr const char* kTableName = "wte";

struct EmbeddingSpec {
  int64_t vocab = 0, d_model = 0;
  int64_t positions = 0;       // number of learned positions; 0: none
  int64_t vocab_multiple = 0;  // the vocabulary is padded to a multiple of this; 0: of 128 × the ranks that share it
  double init_std = 0.02;
  double logit_softcap = 0;  // logits are bounded to cap·tanh(logit/cap); 0: not
};

/// A table in the store, used with activations in the spread `stream`.
struct Table {
  /// Adds a slot for the table to the store. `copy`: the table of this name is on another pipeline stage.
  Table(const Ranks& ranks, params::ParamStore& store, int group, const std::string& name, const EmbeddingSpec& spec,
        VocabSpread spread, Spread stream, bool copy = false);
  /// Returns the same slot for activations in another spread (internal error if the slot's gradient would then be
  /// reduced over different axes).
  Table with_stream(Spread other) const;

  /// Returns the spread of activations at the table (see above).
  Spread spread_at_table() const { return {(stream.rows | spread.flat) & ~cut(), spread.width}; }
  /// Returns the axes along which ranks hold different elements of the table and process the same rows.
  AxisSet cut() const { return spread.vocab | spread.width; }
  int64_t first_token() const { return ranks.index(spread.vocab) * store.box(slot)[0]; }
  mesh::Layout stream_layout(Rows rows) const { return ranks.layout(stream, rows, width); }
  mesh::Layout near_layout(Rows rows) const { return ranks.layout(spread_at_table(), rows, width); }
  /// Returns near_layout() with partial sums along the axes that split the vocabulary.
  mesh::Layout partial_layout(Rows rows) const { return near_layout(rows).with(spread.vocab, mesh::kPartial); }

  const Ranks ranks;
  params::ParamStore& store;
  const VocabSpread spread;
  Spread stream;
  int64_t vocab, width;
  params::SlotId slot = -1;
};

class Embedding {
 public:
  Embedding(const Table& table, int group, const EmbeddingSpec& spec);
  /// Returns the tokens' rows of the table, plus learned positions if there are any, in the spread `stream`.
  Scratch forward(Exec& ex, const Batch& batch);
  /// Sorts the n rows of a batch that this rank has at the table, the order in which backward() sums gradients.
  void sort(std::span<const int32_t> ids, ops::RowsByToken& order) const;
  /// Sorts the rows that this rank has in the spread `stream` by their positions (Batch::positions), the order in which
  /// backward() sums gradients of learned positions. Does nothing if there are none, of rows or in the model.
  void sort_positions(std::span<const int32_t> positions, ops::RowsByToken& order) const;
  void backward(Exec& ex, const Batch& batch, const Tensor& dy, params::GradSink& grads);

 private:
  /// Returns the part of the activations that this rank has at the table.
  Tile tile(Rows rows) const { return table_.ranks.tile(table_.spread_at_table(), rows, table_.width); }
  const Table table_;
  params::SlotId positions_ = -1;
};

/// The terms of the loss that a pass writes for its rows, each [loss_rows] f64 and not scaled.
struct Losses {
  Tensor loss;         // weights[r]·loss[r]
  Tensor z_loss = {};  // z terms (ops::LossTerms); empty without batch.z_loss
  Tensor margin = {};  // margins (ops::LossTerms); may be empty
};

/// The output head with softmax cross-entropy. It processes rows in chunks and computes the logits, the loss and both
/// gradients of a chunk together, so that the logits of the whole batch are never in memory. So the backward pass
/// returns the loss. If rows are split over axes that also split the table, a chunk contains the same number of rows
/// from every rank along these axes.
class Head {
 public:
  /// `tied`: the table is an embedding's, whose backward pass completes the table's gradient. Internal error if the
  /// table is in flat shards over ranks that have the same rows. `cap`: EmbeddingSpec::logit_softcap.
  Head(const Table& table, bool tied, double cap = 0);

  /// Return the axes over which the rows are split when losses are computed, and the number of a rank's rows then.
  AxisSet loss_axes() const { return table_.spread_at_table().rows; }
  int64_t loss_rows(Rows rows) const { return table_.ranks.tile({loss_axes(), 0}, rows, 1).rows; }
  /// Returns the token row of each loss that loss() and loss_backward() write.
  std::vector<int64_t> rows_of_losses(const device::Device& device, Rows rows) const;
  /// Sets the losses of this rank's rows. Does not block; sum_of_losses() does.
  void loss(Exec& ex, const Batch& batch, const Tensor& x, const Losses& losses);
  /// Sets the same losses. dx, in the spread of x, becomes the gradient of loss_scale · (sum of all terms over all
  /// rows). Passes weight gradients to the sink.
  void loss_backward(Exec& ex, const Batch& batch, const Tensor& x, const Losses& losses, Scratch& dx,
                     params::GradSink& grads);
  /// Returns the logits of a few rows, [rows, padded vocabulary], in the accumulator type, on every rank. x has this
  /// rank's columns of the rows' features.
  Scratch logits(Exec& ex, const Tensor& x);
  /// Returns the bytes of the table's packed copy that logits() of that many rows keeps; 0: none.
  int64_t copy_bytes(int64_t rows) const { return table_.store.weights().copy_bytes(table_.slot, true, rows); }

 private:
  struct Chunk;
  void run_in_chunks(Exec& ex, const Batch& batch, const Tensor& x, const Losses& losses, const Tensor& dx,
                     params::GradSink* grads);
  void compute_losses(Exec& ex, const Batch& batch, const Tensor& table, Chunk& chunk, bool gradients) const;
  /// `packed`: the table as packed by WeightCache, or empty.
  Scratch own_logits(Exec& ex, const Tensor& weights, const Tensor& features, const Tensor& packed) const;
  /// Returns the number of rows that each rank contributes to a chunk.
  int64_t chunk_rows(const device::Device& device, Rows rows) const;
  /// Return the axes that split the rows, and those among them along which ranks contribute to the same chunk.
  AxisSet row_axes(Rows rows) const { return rows.cut ? table_.stream.rows : AxisSet{0}; }
  AxisSet shared_axes(Rows rows) const { return row_axes(rows) & table_.cut(); }
  Scratch pick(Exec& ex, Rows rows, const Tensor& all, int64_t first, int64_t count) const;
  void backward(Exec& ex, params::WeightCache::Held& weights, const Chunk& chunk, params::GradSink& grads);
  const Table table_;
  const bool tied_;
  const double cap_;
};

/// Returns the number of rows (of `rows`, with `padded` columns) that a head processes at a time: enough to amortise
/// reading the table in a GEMM, but few enough to take only a small part of memory. The number is the same on all
/// devices of a kind, except for a rank that does not share its table (`unshared`), which may use 1/32 of its GPU's
/// memory.
int64_t head_chunk(const device::Device& device, int64_t rows, int64_t padded, DType compute, bool unshared);
/// Returns the number of rows of a chunk whose logits are in memory at the same time. Gradients in bf16 take half as
/// much memory as logits in fp32. So on a CPU with AVX512-BF16, the gradients of the whole chunk are kept, and logits
/// are computed for a few rows at a time. Results are the same. A chunk is one part unless the rank stores the
/// `whole_table`: ranks that split the vocabulary would have more and smaller collectives, and a gathered table would
/// be packed for every part. It is one part with other instruction sets, too: AMX multiplies faster than memory
/// delivers the table, and vector kernels would pack the table for every part.
int64_t head_part(const device::Device& device, int64_t rows, int64_t padded, DType compute, bool whole_table);

}  // namespace trainer::parallel
