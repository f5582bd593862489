#include "bench/attention.h"

#include <cmath>

#include "tensor/buffer.h"

namespace trainer::bench {

AttentionRate bench_attention(Exec& ex, DType dtype, const ops::AttentionShape& shape, const ops::Timing& timing) {
  const int64_t query_cols = shape.heads * shape.head_dim, key_cols = shape.kv_heads * shape.head_dim;
  const int64_t queries = shape.batch * shape.q_len;
  const int64_t keys = shape.batch * shape.capacity();
  const std::string category = "bench";
  const Buffer q(ex.device, category, {queries, query_cols}, dtype),
      kv(ex.device, category, {keys, 2 * key_cols}, dtype);
  const Buffer out(ex.device, category, {queries, query_cols}, dtype),
      dout(ex.device, category, {queries, query_cols}, dtype);
  const Buffer dq(ex.device, category, {queries, query_cols}, dtype),
      dkv(ex.device, category, {keys, 2 * key_cols}, dtype);
  const Buffer lse(ex.device, category, {shape.batch * shape.heads, shape.q_len}, accumulator_of(dtype));
  ops::fill_uniform(ex.device, q, "q");
  ops::fill_uniform(ex.device, kv, "kv");
  ops::fill_uniform(ex.device, dout, "dout");

  const double scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  const Tensor k = kv.tensor().col_range(0, key_cols), v = kv.tensor().col_range(key_cols, key_cols);
  const ops::AttentionForward forward{q, k, v, out, lse, shape, scale, {}};
  const ops::AttentionBackward backward{forward, dout, dq, dkv.tensor().col_range(0, key_cols),
                                        dkv.tensor().col_range(key_cols, key_cols)};
  AttentionRate rate;
  rate.forward_seconds = ops::seconds_of(ex, forward, timing);
  rate.forward_gflops = cost(forward).flops / rate.forward_seconds * 1e-9;
  if (shape.q_len == shape.k_len) {
    rate.backward_seconds = ops::seconds_of(ex, backward, timing);
    rate.backward_gflops = cost(backward).flops / rate.backward_seconds * 1e-9;
  }
  return rate;
}

}  // namespace trainer::bench
