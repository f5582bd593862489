#include "bench/gemm.h"

#include <algorithm>

#include "base/philox.h"
#include "ops/elementwise.h"
#include "tensor/host_copy.h"

namespace trainer::bench {
namespace {

/// Returns the GFLOP/s of one product.
double rate(Exec& ex, const ops::Gemm& op, const measure::Timing& timing) {
  return cost(op).flops / measure::seconds_of(ex, op, timing) / 1e9;
}

Buffer packed_weight(Exec& ex, const Tensor& w, bool trans) {
  const int64_t k = w.shape[trans ? 1 : 0], n = w.shape[trans ? 0 : 1];
  Buffer packed(ex.device, "bench", {ops::packed_bytes(ex.device, w.dtype, k, n)}, DType::u8);
  ops::run(ex, ops::PackB{w, packed, trans});
  return packed;
}

constexpr int64_t kManyUses = 1000;  // of a weight, so that it is packed: outside the measurement

/// Layer holds the products of a linear layer and their operands.
struct Layer {
  Layer(Exec& ex, DType dtype, const GemmShape& shape)
      : x(ex.device, "bench", {shape.m, shape.k}, dtype),
        w(ex.device, "bench", {shape.k, shape.n}, dtype),
        y(ex.device, "bench", {shape.m, shape.n}, dtype),
        sums(ex.device, "bench", {shape.k, shape.n}, accumulator_of(dtype)) {
    measure::fill_normal(ex.device, x, "x");
    measure::fill_normal(ex.device, w, "w");
    measure::fill_normal(ex.device, y, "y");
    forward = {.a = x, .b = w, .c = y};
    dx = {.a = y, .b = w, .c = x, .trans_b = true};
    dw = {.a = x, .b = y, .c = sums, .trans_a = true, .accumulate = true};
    if (ops::prefers_packed(ex.device, dtype, shape.m, shape.k, kManyUses)) {
      forward.packed_b = packed = packed_weight(ex, w, false);
      dx.packed_b = packed_trans = packed_weight(ex, w, true);
    }
  }
  Buffer x, w, y, sums, packed, packed_trans;
  ops::Gemm forward, dx, dw;
};

/// AfterCopy is a product after the copy that transposes one of its operands.
struct AfterCopy {
  ops::Transpose copy;
  ops::Gemm product;
};
void run(Exec& ex, const AfterCopy& op) {
  ops::run(ex, op.copy);
  ops::run(ex, op.product);
}

constexpr double kNever = 1e300;

GemmForms forms_of(Exec& ex, const GemmShape& shape, const char* name, const ops::Gemm& as_is, int repeats) {
  Buffer a(ex.device, "bench", {as_is.a.cols(), as_is.a.rows()}, as_is.a.dtype),
      b(ex.device, "bench", {as_is.b.cols(), as_is.b.rows()}, as_is.b.dtype);
  AfterCopy a_first{{as_is.a, a}, as_is}, b_first{{as_is.b, b}, as_is};
  a_first.product.a = a;
  a_first.product.trans_a = !as_is.trans_a;
  b_first.product.b = b;
  b_first.product.trans_b = !as_is.trans_b;
  const bool b_matters = !as_is.packed_b;
  double plain = kNever, a_copied = kNever, a_alone = kNever, b_copied = kNever, b_alone = kNever;
  const auto time = [&](double& least, const auto& op) { least = std::min(least, measure::median_seconds(ex, op, 1)); };
  for (int i = 0; i < repeats; ++i) {
    time(plain, as_is);
    time(a_copied, a_first);
    time(a_alone, a_first.product);
    if (!b_matters) continue;
    time(b_copied, b_first);
    time(b_alone, b_first.product);
  }
  GemmForms forms{.shape = shape, .product = name, .seconds = plain};
  forms.a = {plain / a_copied, plain / a_alone};
  if (b_matters) forms.b = {plain / b_copied, plain / b_alone};
  return forms;
}

}  // namespace

std::vector<GemmRate> bench_gemm(Exec& ex, DType dtype, std::span<const GemmShape> shapes,
                                 const measure::Timing& timing) {
  TRAINER_CHECK(timing.repeats >= 1, "{} repeats", timing.repeats);
  std::vector<GemmRate> rates;
  for (const GemmShape& shape : shapes) {
    const Layer layer(ex, dtype, shape);
    // dx overwrites x, and the forward product overwrites y. The weight gradient comes first, so that its operands are
    // still normal draws.
    GemmRate result{.shape = shape};
    result.dw = rate(ex, layer.dw, timing);
    result.forward = rate(ex, layer.forward, timing);
    result.dx = rate(ex, layer.dx, timing);
    rates.push_back(result);
  }
  return rates;
}

std::vector<GemmForms> bench_gemm_forms(Exec& ex, DType dtype, const GemmShape& shape, int repeats) {
  TRAINER_CHECK(repeats >= 1, "{} repeats", repeats);
  const Layer layer(ex, dtype, shape);
  return {forms_of(ex, shape, "dW", layer.dw, repeats), forms_of(ex, shape, "forward", layer.forward, repeats),
          forms_of(ex, shape, "dX", layer.dx, repeats)};
}

}  // namespace trainer::bench
