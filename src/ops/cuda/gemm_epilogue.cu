#include "ops/cuda/gemm_epilogue.h"

#include "ops/cuda/map.cuh"
#include "ops/cuda/math.cuh"
#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

/// Sums are of type S, the bias of B, everything else of C.
template <typename S, typename B, typename C>
struct FinishBody {
  Rows<const S> sums;
  Rows<const B> bias;
  Rows<C> pre;
  Rows<const C> residual;
  Rows<C> c;
  Activation act;
  bool gradient;

  template <int V>
  struct Values {
    float sum[V], pre[V], residual[V];
  };
  template <int V>
  __device__ void load(Values<V>& v, const Piece& at) const {
#pragma unroll
    for (float& sum : v.sum) sum = 0;
    if (sums.data != nullptr) get(sums.at(at.r, at.c), at.n, v.sum);
    if (gradient) get<V>(static_cast<const C*>(pre.at(at.r, at.c)), at.n, v.pre);
    if (residual.data != nullptr) get(residual.at(at.r, at.c), at.n, v.residual);
  }
  template <int V>
  __device__ void store(Values<V>& v, const Piece& at) const {
    if (gradient) {
#pragma unroll
      for (int i = 0; i < V; ++i) v.sum[i] *= slope_of<C>(act, v.pre[i]);
    } else {
      if (bias.data != nullptr) {
        get(bias.at(0, at.c), at.n, v.pre);
#pragma unroll
        for (int i = 0; i < V; ++i) v.sum[i] += v.pre[i];
      }
      if (pre.data != nullptr) put(pre.at(at.r, at.c), at.n, v.sum);
      if (act != Activation::none) {
#pragma unroll
        for (int i = 0; i < V; ++i) v.sum[i] = activated<C>(act, as_stored(v.sum[i]));
      }
    }
    if (residual.data != nullptr) {
#pragma unroll
      for (int i = 0; i < V; ++i) v.sum[i] += v.residual[i];
    }
    put(c.at(at.r, at.c), at.n, v.sum);
  }
  /// Returns the sum as `pre` stores it, to which the activation is applied.
  __device__ static float as_stored(float x) {
    if constexpr (std::is_same_v<C, bf16>) return std::bit_cast<float>(bf16_pair(0.0f, x) & 0xffff0000u);
    return x;
  }
};

template <typename S, typename B, typename C>
void finish(Exec& ex, const Tensor& sums, const Epilogue& e, const Tensor& c) {
  const FinishBody<S, B, C> body{
      rows_in<S>(sums), rows_in<B>(e.bias), rows_of<C>(e.pre), rows_in<C>(e.residual), rows_of<C>(c), e.act,
      e.gradient};
  map<wide_of<C>()>(ex, body, c.rows(), c.cols(), {sums, e.bias, e.pre, e.residual, c}, !e.bias);
}

}  // namespace

void finish_product(Exec& ex, const Tensor& sums, const Epilogue& e, const Tensor& c) {
  // The activation on its own, as in every block's forward pass, takes half of the registers of what follows.
  if (sums && sums.dtype == c.dtype && e.act != Activation::none && !e.gradient && !e.bias && !e.pre && !e.residual)
    return cuda::run(ex, BiasActivation{.x = sums, .bias = {}, .pre = {}, .y = c, .act = e.act});
  if (c.dtype == DType::bf16) {
    sums&& sums.dtype == DType::bf16 ? finish<bf16, bf16, bf16>(ex, sums, e, c)
                                     : finish<float, bf16, bf16>(ex, sums, e, c);
  } else {
    e.bias&& e.bias.dtype == DType::bf16 ? finish<float, bf16, float>(ex, sums, e, c)
                                         : finish<float, float, float>(ex, sums, e, c);
  }
}

}  // namespace trainer::ops::cuda
