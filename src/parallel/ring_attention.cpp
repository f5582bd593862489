#include "ops/activation.h"
#include "ops/elementwise.h"
#include "ops/merge_attention.h"
#include "parallel/shared_attention.h"

namespace trainer::parallel {
namespace {

/// Returns the halves of the columns k ‖ v.
Heads keys_and_values(const Tensor& block) {
  const int64_t width = block.cols() / 2;
  return {{}, block.col_range(0, width), block.col_range(width, width)};
}

}  // namespace

comm::Ticket RingAttention::pass(Exec& ex, const Tensor& from, const Tensor& to) const {
  const auto flat = [](const Tensor& x) { return x.reshape({x.count()}); };
  return started(ex, group().shift(ex, flat(from), flat(to)));
}

// Queries of a segment see the keys of earlier segments, and the earlier ones of their own.
template <typename F>
void RingAttention::each_call(const ops::AttentionForward& all, const Heads& block, int64_t from, F&& attend) const {
  for (const int64_t query_half : {0, 1})
    for (const int64_t key_half : {0, 1}) {
      if (segment(rank_, query_half) < segment(from, key_half)) continue;
      ops::AttentionForward op = queries_of(all, query_half);
      op.k = half_of(block.k, key_half);
      op.v = half_of(block.v, key_half);
      op.shape.first_key = segment(from, key_half) * op.shape.k_len;
      attend(op, query_half, key_half);
    }
}

void RingAttention::forward(Exec& ex, const Batch& batch, const Heads& x, Saved& saved) {
  if (!batch.cut) return AttentionCore::forward(ex, batch, x, saved);
  const ops::AttentionForward all = op(batch, x);
  const int64_t heads = all.shape.heads, length = all.shape.q_len / 2, lines = all.shape.batch * heads;
  const DType type = x.q.dtype, sum_type = accumulator_of(type);
  const Shape width{x.q.rows(), query_width()}, block{x.k.rows(), 2 * key_width()};
  saved.context = ex.take("attention.context", width, type);
  saved.lse = ex.take("attention.lse", {2 * lines, length}, sum_type);
  Scratch wide;  // the context's sums, unless they have its type
  if (sum_type != type) wide = ex.take("context.sum", width, sum_type);
  const Tensor sum = wide ? wide.tensor() : saved.context.tensor();
  Scratch held = ex.take("context.keys", block, type);
  pack(ex, x, 0, key_width(), held);
  for (int64_t step = 0; step < ranks_; ++step) {
    const int64_t from = (rank_ + ranks_ - step) % ranks_;
    Scratch next;
    comm::Ticket coming;
    if (step + 1 < ranks_) {
      next = ex.take("context.keys", block, type);
      coming = pass(ex, held, next);
    }
    each_call(all, keys_and_values(held), from, [&](ops::AttentionForward& op, int64_t half, int64_t key_half) {
      const Scratch part = ex.take("context.part", {op.q.rows(), op.q.cols()}, type),
                    lse = ex.take("context.part.lse", {lines, length}, sum_type);
      op.out = part;
      op.lse = lse;
      ops::run(ex, op);
      ops::run(ex, ops::MergeAttention{.part = part,
                                       .part_lse = lse,
                                       .sum = half_of(sum, half),
                                       .sum_lse = half_of(saved.lse, half),
                                       .heads = heads,
                                       .q_len = length,
                                       .first = step == 0 && key_half == 0});
    });
    finish(ex, coming);
    if (next) held = std::move(next);
  }
  if (wide) ops::run(ex, ops::Cast{wide, saved.context});
}

// The sums of a block begin at the rank after its owner and visit the other ranks. The owner computes a part of its own
// while the first keys arrive, and the rest while the sums return.
Scratch RingAttention::backward(Exec& ex, const Batch& batch, const Tensor& dcontext, const Heads& x,
                                const Saved& saved) {
  const ops::AttentionForward all = op(batch, x);
  const DType type = x.q.dtype, sum_type = accumulator_of(type);
  const Shape block{x.k.rows(), 2 * key_width()};
  Scratch d = ex.take("attention.dqkv", {x.q.rows(), query_width() + 2 * key_width()}, type), wide;
  if (sum_type != type) wide = ex.take("context.dq", {x.q.rows(), query_width()}, sum_type);
  const Tensor to_clear = wide ? wide.tensor() : d.tensor(), dq = to_clear.col_range(0, query_width());
  ex.device.clear(to_clear.data, to_clear.bytes());
  const auto cleared_sums = [&] {
    Scratch sums = ex.take("context.sums", block, sum_type);
    ex.device.clear(sums.tensor().data, sums.tensor().bytes());
    return sums;
  };
  // Adds to dq and to the sums of a block's keys and values, for all calls or those of a kind.
  const auto add = [&](const Heads& keys, int64_t from, const Tensor& sums, auto&& includes) {
    each_call(all, keys, from, [&](ops::AttentionForward& op, int64_t half, int64_t key_half) {
      if (!includes(half, key_half)) return;
      op.out = half_of(saved.context, half);
      op.lse = half_of(saved.lse, half);
      const Heads to = keys_and_values(half_of(sums, key_half));
      ops::AttentionBackward back{op, half_of(dcontext, half), half_of(dq, half), to.k, to.v};
      back.add_dq = back.add_dkv = true;
      ops::run(ex, back);
    });
  };
  const Scratch own = cleared_sums();
  Scratch held = ex.take("context.keys", block, type), sums;
  comm::Ticket sums_coming;
  pack(ex, x, 0, key_width(), held);
  for (int64_t step = 0; step < ranks_; ++step) {
    Scratch next;
    comm::Ticket coming;
    if (step + 1 < ranks_) {
      next = ex.take("context.keys", block, type);
      coming = pass(ex, held, next);
    }
    if (step == 0) {
      add(x, rank_, own, [](int64_t half, int64_t key_half) { return half != key_half; });
    } else {
      const int64_t from = (rank_ + ranks_ - step) % ranks_;
      Scratch more = cleared_sums();
      add(keys_and_values(held), from, more, [](int64_t, int64_t) { return true; });
      if (step > 1) {
        finish(ex, sums_coming);
        ops::run(ex, ops::Add{.x = more, .other = sums, .y = more});
      }
      sums = ex.take("context.sums", block, sum_type);
      sums_coming = pass(ex, more, sums);
      if (sums_coming.is_open()) sums_coming.keep(std::move(more));
    }
    finish(ex, coming);
    if (next) held = std::move(next);
  }
  held.reset();
  add(x, rank_, own, [](int64_t half, int64_t key_half) { return half == key_half; });
  finish(ex, sums_coming);
  ops::run(ex, ops::Add{.x = own, .other = sums, .y = own});
  sums.reset();
  if (wide) {
    const Scratch narrow = ex.take("context.dq.cast", {x.q.rows(), query_width()}, type);
    ops::run(ex, ops::Cast{wide, narrow});
    ops::run(ex, ops::Copy{narrow, d.tensor().col_range(0, query_width())});
  }
  store(ex, own, 0, d);
  return d;
}

}  // namespace trainer::parallel
