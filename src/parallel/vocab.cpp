#include "parallel/vocab.h"

#include <algorithm>

#include "ops/activation.h"
#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "parallel/loss.h"

namespace trainer::parallel {

using comm::Purpose;
using mesh::split;
using mesh::Transit;
using params::GradSlot;
using params::Init;

Table::Table(const Ranks& among, params::ParamStore& in, int group, const std::string& name, const EmbeddingSpec& spec,
             VocabSpread spread_over, Spread activations, bool copy)
    : ranks(among), store(in), spread(spread_over), stream(activations), vocab(spec.vocab), width(spec.d_model) {
  const AxisSet rows = spread_at_table().rows;
  TRAINER_CHECK((spread.flat & cut()) == 0, "an axis must not both shard {} and split its rows or columns", name);
  const int64_t multiple = spec.vocab_multiple > 0 ? spec.vocab_multiple : 128 * ranks.size(spread.vocab);
  const mesh::Layout layout = store.replicated({vocab, width})
                                  .padded(0, round_up(vocab, multiple))
                                  .with(spread.vocab, split(0))
                                  .with(spread.width, split(1))
                                  .with(spread.flat, mesh::kFlat);
  slot = store.add_slot(group, {{.name = name,
                                 .layout = layout,
                                 .init = {Init::Kind::normal, spec.init_std},
                                 .sum_over = rows & ~spread.flat,
                                 .copy = copy}});
  if (spread.keep) store.weights().keep(slot);
}

Table Table::with_stream(Spread other) const {
  Table table = *this;
  table.stream = other;
  TRAINER_CHECK(table.spread_at_table().rows == spread_at_table().rows,
                "rows must be split in the same way at both uses of a tied table");
  return table;
}

Embedding::Embedding(const Table& table, int group, const EmbeddingSpec& spec) : table_(table) {
  if (spec.positions == 0) return;
  const mesh::Layout layout = table.store.replicated({spec.positions, spec.d_model}).with(table.stream.cols, split(1));
  positions_ = table.store.add_slot(group, {{"wpe", layout, {Init::Kind::normal, spec.init_std}, table.stream.rows}});
}

Scratch Embedding::forward(Exec& ex, const Batch& batch) {
  const Table& t = table_;
  const Rows rows = batch.rows();
  const Tile near = tile(rows);
  const Tensor positions = positions_ < 0 ? Tensor{} : t.store.weight(positions_);
  const mesh::Layout from = t.partial_layout(rows), to = t.stream_layout(rows);
  const bool at_once = from == to && near.rows == rows.count;  // then this rank looks up all rows itself
  const bool fused = at_once && batch.starts.size() <= 1;
  Scratch y = ex.take(at_once ? "embedding.y" : "embedding.partial", {near.rows, near.cols}, t.store.compute_dtype());
  {
    const auto weights = t.store.weights().hold(ex, t.slot);
    ops::run(ex, ops::EmbeddingForward{.ids = batch.ids.range(near.first_row, near.rows),
                                       .table = weights,
                                       .positions = fused ? positions : Tensor{},
                                       .y = y,
                                       .rows_per_sequence = batch.seq_len,
                                       .first_position = batch.starts.empty() ? 0 : batch.starts.front(),
                                       .shard = {t.first_token(), t.vocab},
                                       .position_ids = rows_of(batch.positions, near)});
  }
  if (!at_once) y = t.ranks.start_move(ex, from, to, std::move(y)).finish(ex);
  if (!positions || fused) return y;
  const Tile own = t.ranks.tile(t.stream, rows, t.width);
  ops::AddPositions add{.positions = positions,
                        .y = y,
                        .rows_per_sequence = batch.seq_len,
                        .first_row = own.first_row,
                        .position_ids = rows_of(batch.positions, own)};
  if (batch.starts.empty()) ops::run(ex, add);
  for (size_t i = 0; i < batch.starts.size(); ++i) {
    add.y = y.tensor().row_range(static_cast<int64_t>(i) * batch.seq_len, batch.seq_len);
    add.first_position = batch.starts[i];
    ops::run(ex, add);
  }
  return y;
}

void Embedding::sort(std::span<const int32_t> ids, ops::RowsByToken& order) const {
  const Tile near = tile({std::ssize(ids)});
  order.sort(ids.subspan(static_cast<size_t>(near.first_row), static_cast<size_t>(near.rows)), table_.vocab);
}

void Embedding::sort_positions(std::span<const int32_t> positions, ops::RowsByToken& order) const {
  if (positions_ < 0 || positions.empty()) return;
  const Tile own = table_.ranks.tile(table_.stream, {std::ssize(positions)}, table_.width);
  order.sort(positions.subspan(static_cast<size_t>(own.first_row), static_cast<size_t>(own.rows)),
             table_.store.weight(positions_).rows());
}

void Embedding::backward(Exec& ex, const Batch& batch, const Tensor& dy, params::GradSink& grads) {
  const Table& t = table_;
  const Rows rows = batch.rows();
  Transit to_table = t.ranks.start_move(ex, t.stream_layout(rows), t.near_layout(rows), dy);
  if (positions_ >= 0) {  // overlaps the redistribution
    const GradSlot positions = grads.slot(ex, positions_);
    const Tile own = t.ranks.tile(t.stream, rows, t.width);
    if (batch.positions)
      ops::run(ex, ops::EmbeddingBackward{.ids = rows_of(batch.positions, own),
                                          .order = batch.sorted_positions.range(0, own.rows),
                                          .dy = dy,
                                          .dtable = positions.tensor,
                                          .accumulate = positions.accumulate});
    else
      ops::run(ex, ops::PositionsBackward{.dy = dy,
                                          .dpositions = positions.tensor,
                                          .rows_per_sequence = batch.seq_len,
                                          .first_row = own.first_row,
                                          .accumulate = positions.accumulate});
  }
  const Scratch moved = to_table.finish(ex);
  const Tile near = tile(rows);
  const GradSlot table = grads.slot(ex, t.slot);
  ops::run(ex, ops::EmbeddingBackward{.ids = batch.ids.range(near.first_row, near.rows),
                                      .order = batch.sorted.range(0, near.rows),
                                      .dy = moved ? moved.tensor() : dy,
                                      .dtable = table.tensor,
                                      .accumulate = table.accumulate,
                                      .shard = {t.first_token(), t.vocab}});
  grads.complete(ex, t.slot);
}

Head::Head(const Table& table, bool tied, double cap) : table_(table), tied_(tied), cap_(cap) {
  TRAINER_CHECK((table.spread.flat & ~table.stream.rows) == 0,
                "a head's table can be in flat shards only over ranks that have different rows");
}

void Head::loss(Exec& ex, const Batch& batch, const Tensor& x, const Losses& losses) {
  run_in_chunks(ex, batch, x, losses, {}, nullptr);
}

void Head::loss_backward(Exec& ex, const Batch& batch, const Tensor& x, const Losses& losses, Scratch& dx,
                         params::GradSink& grads) {
  dx = ex.take("head.dx", x.shape, x.dtype);
  run_in_chunks(ex, batch, x, losses, dx, &grads);
}

Scratch Head::logits(Exec& ex, const Tensor& x) {
  const Rows rows{.count = x.rows(), .cut = false};
  const Scratch moved = table_.ranks.start_move(ex, table_.stream_layout(rows), table_.near_layout(rows), x).finish(ex);
  Scratch own;
  {
    const auto weights = table_.store.weights().hold(ex, table_.slot);
    own = own_logits(ex, weights, moved ? moved.tensor() : x,
                     table_.store.weights().packed(ex, table_.slot, true, x.rows()));
  }
  const int64_t shards = table_.ranks.size(table_.spread.vocab), count = own.tensor().count();
  if (shards == 1) return own;
  const int64_t cols = own.tensor().cols();
  Scratch all = ex.take("head.all_logits", {shards * rows.count, cols}, own.tensor().dtype);
  table_.ranks.along(table_.spread.vocab, Purpose::critical)
      .all_gather(ex, own.tensor().reshape({count}), all.tensor().reshape({shards * count}))
      .join(ex);
  Scratch joined = ex.take("head.joined_logits", {rows.count, shards * cols}, own.tensor().dtype);
  for (int64_t s = 0; s < shards; ++s)
    ops::run(ex,
             ops::Copy{all.tensor().row_range(s * rows.count, rows.count), joined.tensor().col_range(s * cols, cols)});
  return joined;
}

Scratch Head::own_logits(Exec& ex, const Tensor& weights, const Tensor& features, const Tensor& packed) const {
  Scratch out = ex.take("head.logits", {features.rows(), weights.rows()}, accumulator_of(features.dtype));
  ops::run(ex, ops::Gemm{.a = features, .b = weights, .c = out, .trans_b = true, .packed_b = packed});
  if (table_.ranks.size(table_.spread.width) > 1)
    table_.ranks.along(table_.spread.width, Purpose::critical).all_reduce(ex, out).join(ex);
  if (cap_ > 0) ops::run(ex, ops::SoftCap{out, cap_});
  return out;
}

/// Picks elements from a vector over all token rows: elements [first, first + count) of each rank that contributes to
/// the chunk. Returns an empty tensor if rows are not split, so that no copy is necessary.
Scratch Head::pick(Exec& ex, Rows rows, const Tensor& all, int64_t first, int64_t count) const {
  const Ranks& ranks = table_.ranks;
  const AxisSet cut = row_axes(rows), shared = shared_axes(rows);
  if (cut == 0) return {};
  const int64_t wide = ranks.size(shared), each = all.count() / ranks.size(cut);
  const int64_t begin = ranks.index(cut & ~shared) * wide;
  TRAINER_CHECK(ranks.index(cut) == begin + ranks.index(shared),
                "axes that split both the table and rows must be inside all other axes that split rows");
  Scratch picked = ex.take("head.rows", {wide * count}, all.dtype);
  for (int64_t r = 0; r < wide; ++r)
    ops::run(ex, ops::Copy{all.range((begin + r) * each + first, count), picked.tensor().range(r * count, count)});
  return picked;
}

int64_t Head::chunk_rows(const device::Device& device, Rows rows) const {
  const int64_t padded = table_.store.box(table_.slot)[0], wide = table_.ranks.size(shared_axes(rows));
  const bool unshared = table_.ranks.size(table_.cut()) == 1;
  return std::max<int64_t>(1,
                           head_chunk(device, loss_rows(rows), padded, table_.store.compute_dtype(), unshared) / wide);
}

std::vector<int64_t> Head::rows_of_losses(const device::Device& device, Rows rows) const {
  const Ranks& ranks = table_.ranks;
  const AxisSet cut = row_axes(rows), shared = shared_axes(rows);
  const int64_t wide = ranks.size(shared), each = rows.count / ranks.size(cut);
  const int64_t begin = ranks.index(cut & ~shared) * wide, chunk = chunk_rows(device, rows);
  std::vector<int64_t> found;
  for (int64_t first = 0; first < each; first += chunk)  // in the order of pick()
    for (int64_t r = 0; r < wide; ++r)
      for (int64_t i = first; i < std::min(each, first + chunk); ++i) found.push_back((begin + r) * each + i);
  return found;
}

/// Returns a matrix of type `type`, which is not wider than that of x, in the first bytes of each row of x.
static Tensor start_of_rows(const Tensor& x, DType type) {
  return {x.data, x.shape, type, x.ld() * size_of(x.dtype) / size_of(type)};
}

/// Maximum bytes of each of the two packed copies of the table that are kept because a micro-batch has several chunks.
constexpr int64_t kTableCopy = int64_t{128} << 20;

/// A chunk of rows that the head processes: the rows' features, targets and weights, the destinations of their losses
/// and dx, and the logit gradients.
struct Head::Chunk {
  Rows rows;  // the rows of all ranks over which rows are split
  Tensor features, targets, weights, dlogits, dx;
  Losses losses;
  Scratch memory;     // the memory of dlogits
  int64_t gemms = 1;  // number of GEMMs per micro-batch that can share a packed table
  bool last = false;
};

void Head::run_in_chunks(Exec& ex, const Batch& batch, const Tensor& x, const Losses& losses, const Tensor& dx,
                         params::GradSink* grads) {
  const Ranks& ranks = table_.ranks;
  const Rows all = batch.rows();
  const AxisSet cut = row_axes(all);
  // Held for all chunks. The next matrix is gathered later, since a small model needs the most memory here.
  auto weights = table_.store.weights().hold(ex, table_.slot, params::WeightCache::Next::later);
  const int64_t wide = ranks.size(shared_axes(all)), chunk = chunk_rows(ex.device, all);
  const int64_t rows_here = loss_rows(all);
  const Shape box = table_.store.box(table_.slot);
  const bool small = ops::packed_bytes(ex.device, x.dtype, box[1], box[0]) <= kTableCopy;
  const std::pair<const Tensor*, bool> terms[] = {
      {&losses.loss, true}, {&losses.z_loss, batch.z_loss > 0}, {&losses.margin, static_cast<bool>(losses.margin)}};
  for (const auto& [values, used] : terms)
    TRAINER_CHECK(values->count() == (used ? rows_here : 0), "there are {} losses for {} rows", values->count(),
                  rows_here);
  for (int64_t first = 0; first < x.rows(); first += chunk) {
    const int64_t count = std::min(chunk, x.rows() - first);
    Chunk at{.rows = {.count = count * ranks.size(cut), .cut = all.cut},
             .gemms = small ? divide_up(x.rows(), chunk) : 1};
    const Tensor stream = x.row_range(first, count);
    const Scratch moved =
        ranks.start_move(ex, table_.stream_layout(at.rows), table_.near_layout(at.rows), stream).finish(ex);
    at.features = moved ? moved.tensor() : stream;
    const Scratch targets = pick(ex, all, batch.targets, first, count),
                  rows = pick(ex, all, batch.weights, first, count);
    at.targets = targets ? targets.tensor() : batch.targets.range(first, count);
    at.weights = rows ? rows.tensor() : batch.weights.range(first, count);
    at.losses.loss = losses.loss.range(wide * first, wide * count);
    if (batch.z_loss > 0) at.losses.z_loss = losses.z_loss.range(wide * first, wide * count);
    if (losses.margin) at.losses.margin = losses.margin.range(wide * first, wide * count);
    compute_losses(ex, batch, weights, at, grads != nullptr);
    if (grads == nullptr) continue;
    at.dx = dx.row_range(first, count);
    at.last = first + count == x.rows();
    backward(ex, weights, at, *grads);
  }
}

/// Computes the chunk's losses, and if `gradients` its dlogits.
void Head::compute_losses(Exec& ex, const Batch& batch, const Tensor& table, Chunk& chunk, bool gradients) const {
  const DType compute = chunk.features.dtype;
  const bool whole = table_.ranks.size(table_.cut() | table_.spread.flat) == 1;  // this rank stores the whole table
  const int64_t rows = chunk.features.rows(), part = head_part(ex.device, rows, table.rows(), compute, whole);
  // A CPU writes each row's gradient in order, behind the logits that it reads; a GPU writes a row in any order.
  const bool overwrites =
      accumulator_of(compute) == compute || (ex.device.kind() == device::DeviceKind::cpu && part == rows);
  comm::Communicator* const sharers = table_.ranks.size(table_.spread.vocab) == 1
                                          ? nullptr
                                          : &table_.ranks.along(table_.spread.vocab, Purpose::critical);
  if (gradients && !overwrites) chunk.dlogits = chunk.memory = ex.take("head.dlogits", {rows, table.rows()}, compute);
  const Tensor packed = table_.store.weights().packed(ex, table_.slot, true, part, chunk.gemms);
  for (int64_t row = 0; row < rows; row += part) {
    const int64_t n = std::min(part, rows - row);
    Scratch logits = own_logits(ex, table, chunk.features.row_range(row, n), packed);
    if (gradients && overwrites) chunk.dlogits = start_of_rows(logits, compute);
    ops::LossTerms terms{.z = batch.z_loss, .cap = cap_};
    if (batch.z_loss > 0) terms.z_loss = chunk.losses.z_loss.range(row, n);
    if (chunk.losses.margin) terms.margin = chunk.losses.margin.range(row, n);
    run(ex, sharers,
        ShardedLoss{.shard = {.logits = logits,
                              .targets = chunk.targets.range(row, n),
                              .first = table_.first_token(),
                              .vocab = std::clamp<int64_t>(table_.vocab - table_.first_token(), 0, table.rows())},
                    .weights = chunk.weights.range(row, n),
                    .loss = chunk.losses.loss.range(row, n),
                    .dlogits = gradients ? chunk.dlogits.row_range(row, n) : Tensor{},
                    .vocabulary = table_.vocab,
                    .scale = batch.loss_scale,
                    .terms = terms});
    if (gradients && overwrites) chunk.memory = std::move(logits);
  }
}

// Computes df = dlogits·E, summed over the vocabulary's shards. That reduction overlaps with dE (+)= dlogitsᵀ·f.
void Head::backward(Exec& ex, params::WeightCache::Held& weights, const Chunk& chunk, params::GradSink& grads) {
  const mesh::Layout partial = table_.partial_layout(chunk.rows), home = table_.stream_layout(chunk.rows);
  // Nothing else is rounded between the loss and the final norm, so the reduction is done in the accumulator type.
  const bool sums = partial != home, wide = sums && accumulator_of(chunk.dx.dtype) != chunk.dx.dtype;
  const bool in_place = !wide && table_.near_layout(chunk.rows) == home;
  Scratch apart;
  if (!in_place)
    apart = ex.take("head.dx_all", chunk.features.shape, wide ? accumulator_of(chunk.dx.dtype) : chunk.dx.dtype);
  ops::run(ex, ops::Gemm{.a = chunk.dlogits,
                         .b = weights,
                         .c = in_place ? chunk.dx : apart.tensor(),
                         .packed_b =
                             table_.store.weights().packed(ex, table_.slot, false, chunk.dlogits.rows(), chunk.gemms)});
  Transit sum = in_place ? table_.ranks.start_move_in_place(ex, partial, home, chunk.dx)
                         : table_.ranks.start_move(ex, partial, home, std::move(apart), wide ? Tensor{} : chunk.dx);
  if (chunk.last) {  // the table's memory is free for its gradient, if this is the only chunk
    weights.release();
    table_.store.weights().prefetch(ex);
  }
  const GradSlot table = grads.slot(ex, table_.slot);
  ops::run(
      ex,
      ops::Gemm{
          .a = chunk.dlogits, .b = chunk.features, .c = table.tensor, .trans_a = true, .accumulate = table.accumulate});
  const Scratch dx = sum.finish(ex);
  if (wide) ops::run(ex, ops::Cast{dx, chunk.dx});
  if (chunk.last && !tied_) grads.complete(ex, table_.slot);  // the embedding completes a tied table's gradient
}

int64_t head_part(const device::Device& device, int64_t rows, int64_t padded, DType compute, bool whole_table) {
  constexpr int64_t kLeastRows = 256, kBytes = int64_t{48} << 20;
  const bool cpu = device.kind() == device::DeviceKind::cpu && device.isa() == device::Isa::avx512bf16;
  if (!cpu || accumulator_of(compute) == compute || !whole_table) return rows;
  const int64_t most = std::max(kLeastRows, kBytes / (padded * size_of(accumulator_of(compute))));
  if (rows <= 2 * most) return rows;              // two parts would save nothing
  return divide_up(rows, divide_up(rows, most));  // no part is so short that kernels for small batches multiply it
}

int64_t head_chunk(const device::Device& device, int64_t rows, int64_t padded, DType compute, bool unshared) {
  constexpr int64_t kLeastRows = 256, kStep = 64, kMiB = int64_t{1} << 20;
  const bool gpu = device.kind() == device::DeviceKind::cuda;
  // Each chunk reads the table at least twice, and reads and writes the table's gradient once. The faster GEMMs are,
  // the more rows must share that traffic; a GPU also requires thousands of rows to be fully busy. The chunk does not
  // depend on the instruction set. It depends on a GPU's memory only if the rank does not share its table: ranks that
  // share one exchange chunks, and their GPUs may differ. Smaller chunks would change bits. So would logits in bf16,
  // which save more: their gradients have up to 2.4 times the error of those with fp32 logits, also relative to their
  // mean.
  int64_t bytes = (gpu ? 1024 : compute == DType::bf16 ? 256 : 96) * kMiB;
  if (gpu && unshared) bytes = std::max(bytes, device.gpu().memory_bytes / 32);
  const int64_t most = std::max(kLeastRows, bytes / (padded * size_of(accumulator_of(compute))) / kStep * kStep);
  if (!gpu || rows <= most) return std::min(rows, most);
  // Chunks of equal size: a short last one would leave the GPU partly idle.
  return round_up(divide_up(rows, divide_up(rows, most)), kStep);
}

}  // namespace trainer::parallel
