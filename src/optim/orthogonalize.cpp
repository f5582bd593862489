#include "optim/orthogonalize.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ops/gemm.h"
#include "ops/muon.h"
#include "ops/squared_norm.h"

namespace trainer::optim {
namespace {

struct Triple {
  double a, b, c;
};
constexpr std::array kJordan = {Triple{3.4445, -4.7750, 2.0315}};
// These bring the smallest singular values to 1 fastest, but may diverge for values above 1. Hence kPolarRoom: the norm
// of rounded elements may be slightly too small.
constexpr std::array kPolar = {Triple{8.156554524902461, -22.48329292557795, 15.878769915207462},
                               Triple{4.042929935166739, -2.808917465908714, 0.5000178451051316},
                               Triple{3.8916678022926607, -2.772484153217685, 0.5060648178503393},
                               Triple{3.285753657755655, -2.3681294933425376, 0.46449024233003106},
                               Triple{2.3465413258596377, -1.7097828382687081, 0.42323551169305323}};
constexpr double kPolarRoom = 1.02;

struct Extents {
  int64_t smaller, larger;
};
Extents extents_of(const Shape& shape) { return {std::min(shape[0], shape[1]), std::max(shape[0], shape[1])}; }

void multiply(Exec& ex, const Tensor& a, const Tensor& b, const Tensor& c, bool trans_a = false, bool trans_b = false) {
  ops::run(ex, ops::Gemm{.a = a,
                         .b = b,
                         .c = c,
                         .trans_a = trans_a,
                         .trans_b = trans_b,
                         .epilogue = {},
                         .kind = OpKind::orthogonalize,
                         .packed_b = {}});
}

void step(Exec& ex, const Tensor& x, const Triple& triple) {
  const bool wide = x.shape[0] <= x.shape[1];
  const int64_t k = extents_of(x.shape).smaller;
  const DType sums = accumulator_of(x.dtype);
  const Scratch gram = ex.take("muon.gram", {k, k}, x.dtype);
  multiply(ex, x, x, gram, !wide, wide);
  {
    const Scratch square = ex.take("muon.square", {k, k}, sums);
    multiply(ex, gram, gram, square);
    ops::run(ex, ops::MuonCombine{.product = square, .x = gram, .y = gram, .alpha = triple.c, .beta = triple.b});
  }
  const Scratch product = ex.take("muon.product", x.shape, sums);
  wide ? multiply(ex, gram, x, product) : multiply(ex, x, gram, product);
  ops::run(ex, ops::MuonCombine{.product = product, .x = x, .y = x, .alpha = 1, .beta = triple.a});
}

}  // namespace

void orthogonalize(Exec& ex, const Tensor& x, const NewtonSchulz& how) {
  const bool polar = how.coefficients == config::MuonCoefficients::polar;
  {
    const Scratch blocks = ex.take("muon.norm", {divide_up(x.shape.count(), ops::kNormBlock)}, DType::f64);
    ops::run(ex, ops::MuonNormalize{.x = x, .blocks = blocks, .room = polar ? kPolarRoom : 1});
  }
  for (int i = 0; i < how.steps; ++i)
    step(ex, x, polar ? kPolar[std::min(static_cast<size_t>(i), kPolar.size() - 1)] : kJordan[0]);
}

int64_t orthogonalize_flops(const Shape& shape, int steps) {
  const auto [k, n] = extents_of(shape);
  return steps * (4 * k * k * n + 2 * k * k * k);
}

double update_scale(config::MuonScale scale, const Shape& shape) {
  const auto in = static_cast<double>(shape[0]), out = static_cast<double>(shape[1]);
  return scale == config::MuonScale::rms ? 0.2 * std::sqrt(std::max(in, out)) : std::sqrt(std::max(1.0, out / in));
}

}  // namespace trainer::optim
