#include "ops/bench_attention.h"

#include <cmath>

#include "ops/bench_clock.h"
#include "tensor/host_copy.h"

namespace trainer::ops {
namespace {

template <typename T>
void fill_rows(const Tensor& x, PhiloxKey key) {
  for (int64_t i = 0; i < x.count(); ++i) {
    const uint32_t draw = philox_at(key, static_cast<uint64_t>(i));
    x.as<T>()[i] = static_cast<T>(2 * (static_cast<double>(draw) * 0x1p-32) - 1);
  }
}
void fill(device::Device& device, const Tensor& x, const char* name) {
  const PhiloxKey key = philox_key(1, name);
  HostCopy here(device, x);
  switch (x.dtype) {
    case DType::f64:
      fill_rows<double>(here.tensor(), key);
      break;
    case DType::f32:
      fill_rows<float>(here.tensor(), key);
      break;
    default:
      fill_rows<bf16>(here.tensor(), key);
  }
  here.put();
}

}  // namespace

AttentionRate bench_attention(Exec& ex, DType dtype, const AttentionShape& shape, int repeats) {
  const int64_t query_cols = shape.heads * shape.head_dim, key_cols = shape.kv_heads * shape.head_dim;
  const int64_t queries = shape.batch * shape.q_len;
  const int64_t keys = shape.batch * (shape.k_capacity == 0 ? shape.k_len : shape.k_capacity);
  const std::string category = "bench";
  const Buffer q(ex.device, category, {queries, query_cols}, dtype),
      kv(ex.device, category, {keys, 2 * key_cols}, dtype);
  const Buffer out(ex.device, category, {queries, query_cols}, dtype),
      dout(ex.device, category, {queries, query_cols}, dtype);
  const Buffer dq(ex.device, category, {queries, query_cols}, dtype),
      dkv(ex.device, category, {keys, 2 * key_cols}, dtype);
  const Buffer lse(ex.device, category, {shape.batch * shape.heads, shape.q_len}, accumulator_of(dtype));
  fill(ex.device, q, "q");
  fill(ex.device, kv, "kv");
  fill(ex.device, dout, "dout");

  const double scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  const Tensor k = kv.tensor().col_range(0, key_cols), v = kv.tensor().col_range(key_cols, key_cols);
  const AttentionForward forward{q, k, v, out, lse, shape, scale, {}};
  const bool both = shape.q_len == shape.k_len;
  AttentionBackward backward;
  if (both) {
    backward = {q,
                k,
                v,
                out,
                lse,
                dout,
                dq,
                dkv.tensor().col_range(0, key_cols),
                dkv.tensor().col_range(key_cols, key_cols),
                shape,
                scale,
                {}};
  }

  AttentionRate rate;
  rate.forward_seconds = median_seconds(ex, forward, repeats);
  rate.forward_gflops = cost(forward).flops / rate.forward_seconds * 1e-9;
  if (both) {
    rate.backward_seconds = median_seconds(ex, backward, repeats);
    rate.backward_gflops = cost(backward).flops / rate.backward_seconds * 1e-9;
  }
  return rate;
}

}  // namespace trainer::ops
