#include "ops/activation.h"
#include "ops/elementwise.h"
#include "ops/merge_attention.h"
#include "parallel/shared_attention.h"

namespace trainer::parallel {

comm::Ticket RingAttention::pass(Exec& ex, const Tensor& from, const Tensor& to) const {
  const auto flat = [](const Tensor& x) { return x.reshape({x.count()}); };
  return started(ex, group().shift(ex, flat(from), flat(to)));
}

// Queries of a segment see the keys of earlier segments, and the earlier ones of their own.
template <typename F>
void RingAttention::each_call(const ops::AttentionForward& all, const Tensor& block, int64_t from, F&& attend) const {
  for (const int64_t query_half : {0, 1})
    for (const int64_t key_half : {0, 1}) {
      if (segment(rank_, query_half) < segment(from, key_half)) continue;
      ops::AttentionForward op = queries_of(all, query_half);
      const Tensor keys = half_of(block, key_half);
      op.k = keys.col_range(0, key_width());
      op.v = keys.col_range(key_width(), key_width());
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
    each_call(all, held, from, [&](ops::AttentionForward& op, int64_t half, int64_t key_half) {
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

Scratch RingAttention::backward(Exec& ex, const Batch& batch, const Tensor& dcontext, const Heads& x,
                                const Saved& saved) {
  const ops::AttentionForward all = op(batch, x);
  const DType type = x.q.dtype, sum_type = accumulator_of(type);
  const Shape block{x.k.rows(), 2 * key_width()};
  Scratch d = ex.take("attention.dqkv", {x.q.rows(), query_width() + 2 * key_width()}, type), wide;
  if (sum_type != type) wide = ex.take("context.dq", {x.q.rows(), query_width()}, sum_type);
  const Tensor cleared = wide ? wide.tensor() : d.tensor(), dq = cleared.col_range(0, query_width());
  ex.device.clear(cleared.data, cleared.bytes());
  Scratch held = ex.take("context.keys", block, type), sums;  // sums of the block that this rank has next
  pack(ex, x, 0, key_width(), held);
  comm::Ticket sums_coming;
  for (int64_t step = 0; step < ranks_; ++step) {
    const int64_t from = (rank_ + ranks_ - step) % ranks_;
    Scratch next;
    comm::Ticket coming;
    if (step + 1 < ranks_) {
      next = ex.take("context.keys", block, type);
      coming = pass(ex, held, next);
    }
    Scratch own = ex.take("context.sums", block, sum_type);
    ex.device.clear(own.tensor().data, own.tensor().bytes());
    each_call(all, held, from, [&](ops::AttentionForward& op, int64_t half, int64_t key_half) {
      op.out = half_of(saved.context, half);
      op.lse = half_of(saved.lse, half);
      const Tensor keys = half_of(own, key_half);
      ops::AttentionBackward back{op, half_of(dcontext, half), half_of(dq, half), keys.col_range(0, key_width()),
                                  keys.col_range(key_width(), key_width())};
      back.add_dq = back.add_dkv = true;
      ops::run(ex, back);
    });
    if (step > 0) {  // a block's sum begins at its owner and visits the ranks after it
      finish(ex, sums_coming);
      ops::run(ex, ops::Add{.x = own, .other = sums, .y = own});
    }
    sums = ex.take("context.sums", block, sum_type);
    sums_coming = pass(ex, own, sums);
    if (sums_coming.is_open()) sums_coming.keep(std::move(own));
    finish(ex, coming);
    if (next) held = std::move(next);
  }
  finish(ex, sums_coming);
  if (wide) {
    const Scratch narrow = ex.take("context.dq.cast", {x.q.rows(), query_width()}, type);
    ops::run(ex, ops::Cast{wide, narrow});
    ops::run(ex, ops::Copy{narrow, d.tensor().col_range(0, query_width())});
  }
  store(ex, std::move(sums), 0, d);
  return d;
}

}  // namespace trainer::parallel
