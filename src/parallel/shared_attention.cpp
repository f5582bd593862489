#include "parallel/shared_attention.h"

#include "ops/elementwise.h"

namespace trainer::parallel {

SharedAttention::SharedAttention(const Ranks& ranks, const sharding::Layer& layer, const LayerSpec& spec)
    : AttentionCore(ranks, layer, spec),
      ranks_(ranks.size(layer.context.axes)),
      rank_(ranks.index(layer.context.axes)) {}

ops::AttentionForward SharedAttention::queries_of(const ops::AttentionForward& all, int64_t half) const {
  ops::AttentionForward op = all;
  const int64_t length = all.shape.q_len / 2;  // a rank's rows of a sequence are two segments
  op.q = half_of(all.q, half);
  op.shape.q_len = op.shape.k_len = length;
  op.shape.first_query = segment(rank_, half) * length;
  op.shape.length = 2 * ranks_ * length;
  if (all.mask.first) op.mask.first = all.mask.first.range(half * all.shape.batch * length, all.shape.batch * length);
  return op;
}

void SharedAttention::pack(Exec& ex, const Heads& x, int64_t begin, int64_t width, const Tensor& message) const {
  ops::run(ex, ops::Copy{x.k.col_range(begin, width), message.col_range(0, width)});
  ops::run(ex, ops::Copy{x.v.col_range(begin, width), message.col_range(width, width)});
}

void SharedAttention::store(Exec& ex, const Tensor& sums, int64_t begin, const Tensor& dqkv) const {
  const int64_t width = sums.cols() / 2;
  Scratch narrow;
  if (sums.dtype != dqkv.dtype) {
    narrow = ex.take("context.sums.cast", sums.shape, dqkv.dtype);
    ops::run(ex, ops::Cast{sums, narrow});
  }
  const Tensor d = narrow ? narrow.tensor() : sums;
  for (const int64_t i : {0, 1})
    ops::run(ex,
             ops::Copy{d.col_range(i * width, width), dqkv.col_range(query_width() + i * key_width() + begin, width)});
}

comm::Ticket SharedAttention::started(Exec& ex, comm::Ticket ticket) const {
  if (!ranks().overlap()) ticket.join(ex);
  return ticket;
}

void SharedAttention::finish(Exec& ex, comm::Ticket& ticket) {
  if (ticket.is_open()) ticket.join(ex);
}

}  // namespace trainer::parallel
