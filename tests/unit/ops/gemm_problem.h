#pragma once
// Random GEMMs with double-precision references and error bounds, shared by the tests of all GEMM paths.
#include <cmath>
#include <random>
#include <vector>

#include "ops/gemm.h"
#include "unit/ops/test_device.h"

namespace trainer::ops::gemm_test {

using device::Isa;
using testing::Machine;
using testing::TestExec;

/// A matrix in its own memory, rows `pitch` apart; the gaps between rows hold a sentinel that must not change.
struct Matrix {
  Matrix() = default;
  Matrix(Shape shape, DType dtype, int64_t gap = 0)
      : memory(static_cast<size_t>((shape.count() / std::max<int64_t>(1, shape[-1]) + 1) * (shape[-1] + gap) *
                                   size_of(dtype)) +
                   64,
               std::byte{0x5a}) {
    tensor = {memory.data(), shape, dtype, shape[-1] + gap};
  }
  int64_t offset(int64_t i, int64_t j) const { return i * tensor.ld() + j; }
  double at(int64_t i, int64_t j) const {
    switch (tensor.dtype) {
      case DType::f64:
        return tensor.as<double>()[offset(i, j)];
      case DType::f32:
        return static_cast<double>(tensor.as<float>()[offset(i, j)]);
      default:
        return static_cast<double>(tensor.as<bf16>()[offset(i, j)]);
    }
  }
  void set(int64_t i, int64_t j, double value) {
    switch (tensor.dtype) {
      case DType::f64:
        tensor.as<double>()[offset(i, j)] = value;
        return;
      case DType::f32:
        tensor.as<float>()[offset(i, j)] = static_cast<float>(value);
        return;
      default:
        tensor.as<bf16>()[offset(i, j)] = bf16(value);
    }
  }
  template <typename F>
  void fill(F&& next) {
    for (int64_t i = 0; i < tensor.shape[0]; ++i)
      for (int64_t j = 0; j < tensor.cols(); ++j) set(i, j, next());
  }
  bool gaps_intact() const {
    const int64_t size = size_of(tensor.dtype);
    for (int64_t i = 0; i < tensor.shape[0]; ++i)
      for (int64_t byte = offset(i, tensor.cols()) * size; byte < offset(i + 1, 0) * size; ++byte)
        if (memory[static_cast<size_t>(byte)] != std::byte{0x5a}) return false;
    return true;
  }

  std::vector<std::byte> memory;
  Tensor tensor;
};

inline constexpr double kGelu = 0.79788456080286535588, kCubic = 0.044715;
inline double gelu(double x) { return 0.5 * x * (1 + std::tanh(kGelu * (x + kCubic * x * x * x))); }
inline double gelu_grad(double x) {
  const double t = std::tanh(kGelu * (x + kCubic * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kGelu * (1 + 3 * kCubic * x * x);
}

enum class Ending { none, bias, gelu, gelu_no_pre, gradient, residual, residual_in_place, all, accumulate };
inline constexpr Ending kEndings[] = {Ending::none,
                                      Ending::bias,
                                      Ending::gelu,
                                      Ending::gelu_no_pre,
                                      Ending::gradient,
                                      Ending::residual,
                                      Ending::residual_in_place,
                                      Ending::all,
                                      Ending::accumulate};

struct Case {
  int64_t m, n, k;
  DType in, out;
  bool trans_a = false, trans_b = false;
  Ending ending = Ending::none;
  int64_t gap = 0;
  bool integers = false;
};
inline std::string text(const Case& c) {
  return format("m {} n {} k {} {}->{} ta {} tb {} ending {} gap {}", c.m, c.n, c.k, name_of(c.in), name_of(c.out),
                c.trans_a, c.trans_b, static_cast<int>(c.ending), c.gap);
}

/// A GEMM with random operands, its reference and its error bound.
struct Problem {
  explicit Problem(const Case& requested) : c(requested) {
    std::mt19937 random(static_cast<unsigned>(17 + requested.m * 31 + requested.n * 7 + requested.k));
    std::normal_distribution<double> normal;
    std::uniform_int_distribution<int> small(-4, 4);
    const auto next = [&] { return requested.integers ? small(random) : normal(random); };
    const auto matrix = [&](Shape shape, DType dtype) {
      Matrix out(shape, dtype, c.gap);
      out.fill(next);
      return out;
    };
    a = matrix(c.trans_a ? Shape{c.k, c.m} : Shape{c.m, c.k}, c.in);
    b = matrix(c.trans_b ? Shape{c.n, c.k} : Shape{c.k, c.n}, c.in);
    out = matrix({c.m, c.n}, c.out);
    op.a = a.tensor, op.b = b.tensor, op.c = out.tensor;
    op.trans_a = c.trans_a, op.trans_b = c.trans_b;
    const Ending e = c.ending;
    op.accumulate = e == Ending::accumulate;
    if (e == Ending::bias || e == Ending::gelu || e == Ending::gelu_no_pre || e == Ending::all) {
      bias = Matrix({1, c.n}, c.in);
      bias.fill(next);
      op.epilogue.bias = {bias.memory.data(), {c.n}, c.in};
    }
    if (e == Ending::gelu || e == Ending::gelu_no_pre || e == Ending::gradient || e == Ending::all)
      op.epilogue.act = Activation::gelu;
    op.epilogue.gradient = e == Ending::gradient;
    if (e == Ending::gelu || e == Ending::gradient || e == Ending::all) {
      pre = matrix({c.m, c.n}, c.out);
      op.epilogue.pre = pre.tensor;
    }
    if (e == Ending::residual || e == Ending::all) {
      residual = matrix({c.m, c.n}, c.out);
      op.epilogue.residual = residual.tensor;
    }
    if (e == Ending::residual_in_place) op.epilogue.residual = out.tensor;
    reference();
  }

  void reference() {
    const size_t count = static_cast<size_t>(c.m * c.n);
    sums.resize(count), value.resize(count), pre_value.resize(count), bound.resize(count), pre_bound.resize(count);
    std::vector<double> sizes(count), row(static_cast<size_t>(c.n));
    for (int64_t t = 0; t < c.k; ++t) {
      for (int64_t j = 0; j < c.n; ++j) row[static_cast<size_t>(j)] = c.trans_b ? b.at(j, t) : b.at(t, j);
      for (int64_t i = 0; i < c.m; ++i) {
        const double x = c.trans_a ? a.at(t, i) : a.at(i, t);
        double *sum = sums.data() + i * c.n, *size = sizes.data() + i * c.n;
        for (size_t j = 0; j < row.size(); ++j) sum[j] += x * row[j], size[j] += std::abs(x * row[j]);
      }
    }
    const double sum_eps = c.in == DType::f64 ? 0x1p-53 : 0x1p-24;
    const double round_eps = c.out == DType::f64 ? 0x1p-53 : c.out == DType::f32 ? 0x1p-24 : 0x1p-8;
    for (int64_t i = 0; i < c.m; ++i)
      for (int64_t j = 0; j < c.n; ++j) {
        const size_t at = static_cast<size_t>(i * c.n + j);
        double sum = sums[at], slope = 1;
        const double size = sizes[at];
        if (op.epilogue.gradient) {
          slope = gelu_grad(pre.at(i, j));
          sum *= slope;
        } else {
          if (op.epilogue.bias) sum += bias.at(0, j);
          pre_value[at] = sum;
          pre_bound[at] = static_cast<double>(c.k + 2) * sum_eps * (size + std::abs(sum)) + round_eps * std::abs(sum);
          if (op.epilogue.act == Activation::gelu) slope = 1.2, sum = gelu(sum);
        }
        double added = 0;
        if (op.epilogue.residual) added = c.ending == Ending::residual_in_place ? out.at(i, j) : residual.at(i, j);
        if (op.accumulate) added = out.at(i, j);
        value[at] = sum + added;
        // 16 ε cover the activation and the additions after the sum.
        bound[at] = sum_eps * (static_cast<double>(c.k) * size * std::abs(slope) +
                               16 * (size + std::abs(sum) + std::abs(added) + 1)) +
                    1.01 * round_eps * std::abs(value[at]);
        // The activation is applied to the sum as stored in `pre`.
        if (op.epilogue.act == Activation::gelu && !op.epilogue.gradient)
          bound[at] += 1.2 * (pre_bound[at] + round_eps * std::abs(pre_value[at]));
      }
  }

  /// Allows for a library's slope of GELU from a GPU's tanh.approx, which has a relative error of 2^-11 (PTX ISA). The
  /// slope is (1 + t)/2 + x·(1 − t²)·g'/2 with g' the derivative of tanh's argument.
  void allow_approximate_slope() {
    for (int64_t i = 0; i < c.m; ++i)
      for (int64_t j = 0; j < c.n; ++j) {
        const size_t at = static_cast<size_t>(i * c.n + j);
        const double x = pre.at(i, j), t = std::tanh(kGelu * (x + kCubic * x * x * x)), dt = 0x1p-11 * std::abs(t);
        bound[at] += std::abs(sums[at]) * dt * (0.5 + std::abs(x * t) * kGelu * (1 + 3 * kCubic * x * x));
      }
  }

  /// Allows for cuBLASLt, which for some shapes rounds sums to bf16 before bias or the slope of GELU. The emulated
  /// library does not.
  void allow_rounded_sums() {
    if (testing::emulated() || c.out != DType::bf16 || !(op.epilogue.bias || op.epilogue.gradient)) return;
    for (size_t at = 0; at < sums.size(); ++at) {
      const int64_t i = static_cast<int64_t>(at) / c.n, j = static_cast<int64_t>(at) % c.n;
      const double slope = op.epilogue.gradient ? gelu_grad(pre.at(i, j)) : 1, rounding = 0x1p-8 * std::abs(sums[at]);
      bound[at] += (op.epilogue.act == Activation::gelu && !op.epilogue.gradient ? 1.2 : std::abs(slope)) * rounding;
      pre_bound[at] += rounding;
    }
  }

  void expect_result() const {
    for (int64_t i = 0; i < c.m; ++i)
      for (int64_t j = 0; j < c.n; ++j) {
        const size_t at = static_cast<size_t>(i * c.n + j);
        const double tolerance = c.integers ? 0 : bound[at];
        ASSERT_NEAR(out.at(i, j), value[at], tolerance) << text(c) << " at " << i << ", " << j;
        if (!op.epilogue.pre || op.epilogue.gradient) continue;
        ASSERT_NEAR(pre.at(i, j), pre_value[at], pre_bound[at]) << "pre: " << text(c) << " at " << i << ", " << j;
        // The result recomputed from `pre` differs by one rounding and the activation's own error.
        const double rebuilt = gelu(pre.at(i, j)) + (op.epilogue.residual ? residual.at(i, j) : 0);
        const double eps = c.out == DType::f64 ? 0x1p-53 : c.out == DType::f32 ? 0x1p-24 : 0x1p-8;
        const double sum_eps = c.out == DType::f64 ? 0x1p-53 : 0x1p-24;
        ASSERT_NEAR(out.at(i, j), rebuilt,
                    1.01 * eps * std::abs(rebuilt) + 16 * sum_eps * (1 + std::abs(pre.at(i, j)) + std::abs(rebuilt)))
            << "rebuilt: " << text(c) << " at " << i << ", " << j;
      }
    EXPECT_TRUE(out.gaps_intact()) << text(c);
    EXPECT_TRUE(!op.epilogue.pre || pre.gaps_intact()) << text(c);
  }

  Case c;
  Matrix a, b, out, bias, pre, residual;
  Gemm op;
  std::vector<double> sums, value, pre_value, bound, pre_bound;
};

}  // namespace trainer::ops::gemm_test
