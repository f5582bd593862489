#include "bench/gemm.h"

namespace trainer::bench {
namespace {

/// Returns the GFLOP/s of one GEMM.
double rate(Exec& ex, const ops::Gemm& op, const ops::Timing& timing) {
  return cost(op).flops / ops::seconds_of(ex, op, timing) / 1e9;
}

Buffer packed_weight(Exec& ex, const Tensor& w, bool trans) {
  const int64_t k = w.shape[trans ? 1 : 0], n = w.shape[trans ? 0 : 1];
  Buffer packed(ex.device, "bench", {ops::packed_bytes(ex.device, w.dtype, k, n)}, DType::u8);
  ops::run(ex, ops::PackB{w, packed, trans});
  return packed;
}

constexpr int64_t kManyUses = 1000;  // so that prefers_packed() packs a weight, unless there are few rows; not timed

/// The GEMMs of a linear layer and their operands.
struct Layer {
  Layer(Exec& ex, DType dtype, const GemmShape& shape)
      : x(ex.device, "bench", {shape.m, shape.k}, dtype),
        w(ex.device, "bench", {shape.k, shape.n}, dtype),
        y(ex.device, "bench", {shape.m, shape.n}, dtype),
        sums(ex.device, "bench", {shape.k, shape.n}, accumulator_of(dtype)) {
    ops::fill_normal(ex.device, x, "x");
    ops::fill_normal(ex.device, w, "w");
    ops::fill_normal(ex.device, y, "y");
    forward = {.a = x, .b = w, .c = y};
    dx = {.a = y, .b = w, .c = x, .trans_b = true};
    dw = {.a = x, .b = y, .c = sums, .trans_a = true, .accumulate = true};
    if (ops::prefers_packed(ex.device, dtype, {.m = shape.m, .k = shape.k, .uses = kManyUses})) {
      forward.packed_b = packed = packed_weight(ex, w, false);
      dx.packed_b = packed_trans = packed_weight(ex, w, true);
    }
  }
  Buffer x, w, y, sums, packed, packed_trans;
  ops::Gemm forward, dx, dw;
};

}  // namespace

std::vector<GemmRate> bench_gemm(Exec& ex, DType dtype, std::span<const GemmShape> shapes, const ops::Timing& timing) {
  TRAINER_CHECK(timing.repeats >= 1, "bench_gemm() requires at least one repeat, not {}", timing.repeats);
  std::vector<GemmRate> rates;
  for (const GemmShape& shape : shapes) {
    const Layer layer(ex, dtype, shape);
    // dx overwrites x, and the forward GEMM overwrites y. The weight gradient comes first, so that its operands are
    // still normal draws.
    GemmRate result{.shape = shape};
    result.dw = rate(ex, layer.dw, timing);
    result.forward = rate(ex, layer.forward, timing);
    result.dx = rate(ex, layer.dx, timing);
    rates.push_back(result);
  }
  return rates;
}

}  // namespace trainer::bench
