#include "ops/activation.h"

#include <cmath>
#include <complex>
#include <numbers>

#include "unit/ops/op_fixture.h"

namespace trainer::ops::testing {
namespace {

template <typename V>
V gelu(V x) {
  using std::tanh;
  return 0.5 * x * (1.0 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

template <typename V>
V silu(V x) {
  using std::exp;
  return x / (1.0 + exp(-x));
}

template <typename V>
V value_at(Activation act, V x) {
  return act == Activation::silu ? silu(x) : act == Activation::gelu ? gelu(x) : x;
}
template <>
double value_at(Activation act, double x) {
  if (act == Activation::gelu_erf) return x / 2 * std::erfc(-x / std::sqrt(2.0));
  return static_cast<double>(value_at<long double>(act, x));
}
/// Returns act'(x), by the complex step where the function is analytic.
double slope_at(Activation act, double x) {
  if (act == Activation::gelu_erf)
    return std::erfc(-x / std::sqrt(2.0)) / 2 + x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
  return value_at(act, std::complex<double>(x, 1e-40)).imag() / 1e-40;
}

struct Case {
  int64_t rows, cols, gap;
};
std::vector<Case> cases() { return {{1, 1, 0}, {3, 37, 0}, {5, 16, 3}, {6, 40, 8}, {7, 2001, 0}, {4, 1099, 5}}; }

struct GatedCase : Case {
  Activation act;
};
std::vector<GatedCase> gated_cases() {
  std::vector<GatedCase> all;
  for (const Case& c : cases())
    for (const Activation act : {Activation::silu, Activation::gelu, Activation::gelu_erf}) all.push_back({c, act});
  return all;
}

template <typename T>
struct Activations : DeviceTest {
  static constexpr DType kType = DTypeOf<T>::value;
};
TYPED_TEST_SUITE(Activations, ComputeTypes);

/// Returns x as it is read back after being stored as T.
template <typename T>
double stored(double x) {
  return static_cast<double>(T(static_cast<AccumulatorOf<T>>(x)));
}

TYPED_TEST(Activations, BiasAndActivationMatchTheFormula) {
  using T = TypeParam;
  for (const Case& c : cases())
    for (const bool biased : {false, true})
      for (const Activation act : {Activation::none, Activation::gelu, Activation::gelu_erf}) {
        SCOPED_TRACE(
            format("[{}, {}] gap {}, bias {}, activation {}", c.rows, c.cols, c.gap, biased, static_cast<int>(act)));
        Normal draw(41, 0, 2);
        const TestTensor x = TestTensor({c.rows, c.cols}, this->kType, c.gap).fill(draw);
        const TestTensor bias = TestTensor({c.cols}, this->kType).fill(draw);
        on_every_device(
            [&](TestExec& ex) {
              TestTensor in = x, b = biased ? bias : TestTensor(), pre({c.rows, c.cols}, this->kType), in_place = x,
                         y({c.rows, c.cols}, this->kType, c.gap);
              run(ex, BiasActivation{in, b, pre, y, act});
              run(ex, BiasActivation{in_place, b, {}, in_place, act});
              EXPECT_TRUE(in_place.memory() == y.memory());
              return std::vector<TestTensor>{pre, y};
            },
            [&](const std::vector<TestTensor>& out) {
              for (int64_t i = 0; i < x.count(); ++i) {
                const double sum = x.at(i) + (biased ? bias.at(i % c.cols) : 0);
                expect_close<T>(out[0].at(i), sum, 1, std::abs(sum), "pre");
                // Computed from the stored value, so that the backward pass can recompute it.
                const double kept = out[0].at(i), want = value_at(act, kept);
                expect_close<T>(out[1].at(i), want, 4, std::max(1.0, std::abs(kept)), format("act({})", kept));
              }
            });
      }
}

TYPED_TEST(Activations, BackwardMatchesTheDerivative) {
  using T = TypeParam;
  for (const GatedCase& c : gated_cases()) {
    if (c.act == Activation::silu) continue;
    Normal draw(42, 0, 3);
    const TestTensor x = TestTensor({c.rows, c.cols}, this->kType, c.gap).fill(draw),
                     dy = TestTensor({c.rows, c.cols}, this->kType).fill(draw);
    on_every_device(
        [&](TestExec& ex) {
          TestTensor d = dy, in = x, dx({c.rows, c.cols}, this->kType, c.gap), in_place = dy;
          run(ex, ActivationBackward{d, in, dx, c.act});
          run(ex, ActivationBackward{in_place, in, in_place, c.act});
          for (int64_t i = 0; i < x.count(); ++i) EXPECT_EQ(in_place.at(i), dx.at(i));
          return std::vector<TestTensor>{dx};
        },
        [&](const std::vector<TestTensor>& out) {
          for (int64_t i = 0; i < x.count(); ++i) {
            const double slope = slope_at(c.act, x.at(i));
            expect_close<T>(out[0].at(i), dy.at(i) * slope, 16, std::max(1.0, std::abs(dy.at(i) * x.at(i))),
                            format("act'({})", x.at(i)));
          }
        });
  }
}

TYPED_TEST(Activations, AddsInOrderAndRoundsOnce) {
  using T = TypeParam;
  for (const Case& c : cases())
    for (const bool biased : {false, true}) {
      Normal draw(43, 0, 2);
      const TestTensor x = TestTensor({c.rows, c.cols}, this->kType, c.gap).fill(draw),
                       other = TestTensor({c.rows, c.cols}, this->kType).fill(draw),
                       bias = TestTensor({c.cols}, this->kType).fill(draw);
      on_every_device(
          [&](TestExec& ex) {
            TestTensor in = x, more = other, b = biased ? bias : TestTensor(), y({c.rows, c.cols}, this->kType),
                       onto = other;
            run(ex, Add{.x = in, .other = more, .y = y, .bias = b});
            run(ex, Add{.x = in, .other = onto, .y = onto, .bias = b});
            EXPECT_TRUE(onto.memory() == y.memory());
            return std::vector<TestTensor>{y};
          },
          [&](const std::vector<TestTensor>& out) {
            using A = AccumulatorOf<T>;
            for (int64_t i = 0; i < x.count(); ++i) {
              A sum = static_cast<A>(x.at(i));
              if (biased) sum += static_cast<A>(bias.at(i % c.cols));
              EXPECT_EQ(out[0].at(i), stored<T>(static_cast<double>(sum + static_cast<A>(other.at(i)))));
            }
          });
    }
}

// In a GEMM with the identity every sum is an element of x, in whatever order terms are added.
TYPED_TEST(Activations, AgreesWithTheEpilogueOfAProductInEveryBit) {
  if (on_cuda()) GTEST_SKIP() << "GEMMs of a GPU are the library's";
  const int64_t rows = 9, cols = 43;
  Normal draw(44, 0, 2);
  const TestTensor x = TestTensor({rows, cols}, this->kType).fill(draw),
                   pre = TestTensor({rows, cols}, this->kType).fill(draw);
  const TestTensor bias = TestTensor({cols}, this->kType).fill(draw);
  TestTensor one({cols, cols}, this->kType);
  for (int64_t i = 0; i < cols * cols; ++i) one.set(i, i / cols == i % cols ? 1 : 0);
  for (const Activation act : {Activation::gelu, Activation::gelu_erf})
    on_every_device(
        [&](TestExec& ex) {
          TestTensor in = x, b = bias, unit = one, kept({rows, cols}, this->kType), y = kept, kept2 = kept, y2 = kept,
                     dx = kept, dx2 = kept, input = pre;
          Gemm product{.a = in, .b = unit, .c = y};
          product.epilogue = {.bias = b, .act = act, .pre = kept};
          run(ex, product);
          run(ex, BiasActivation{in, b, kept2, y2, act});
          EXPECT_TRUE(kept.memory() == kept2.memory());
          EXPECT_TRUE(y.memory() == y2.memory());
          Gemm gradient{.a = in, .b = unit, .c = dx};
          gradient.epilogue = {.act = act, .pre = input, .gradient = true};
          run(ex, gradient);
          run(ex, ActivationBackward{in, input, dx2, act});
          EXPECT_TRUE(dx.memory() == dx2.memory());
          return std::vector<TestTensor>{y, dx};
        },
        [](const std::vector<TestTensor>&) {});
}

TYPED_TEST(Activations, GatedUnitsMatchTheComplexStep) {
  using T = TypeParam;
  for (const GatedCase& c : gated_cases()) {
    SCOPED_TRACE(format("[{}, {}] gap {}, activation {}", c.rows, c.cols, c.gap, static_cast<int>(c.act)));
    Normal draw(22, 0, 2);
    TestTensor dy = TestTensor({c.rows, c.cols}, this->kType).fill(draw);
    TestTensor both =
        TestTensor({c.rows, 2 * c.cols}, this->kType, c.gap).fill(draw);  // gate and up are its column ranges
    on_every_device(
        [&](TestExec& ex) {
          TestTensor y({c.rows, c.cols}, this->kType), gradient = both;
          const Tensor gate = gradient.tensor().col_range(0, c.cols), up = gradient.tensor().col_range(c.cols, c.cols);
          run(ex, GatedForward{gate, up, y, {}, c.act});
          run(ex, GatedBackward{dy, gate, up, gate, up, {}, {}, c.act});
          return std::vector<TestTensor>{y, gradient};
        },
        [&](const std::vector<TestTensor>& out) {
          for (int64_t r = 0; r < c.rows; ++r)
            for (int64_t i = 0; i < c.cols; ++i) {
              const double g = both.at(r, i), u = both.at(r, c.cols + i), d = dy.at(r, i);
              const double slope = slope_at(c.act, g), scale = 1 + std::abs(d) * (1 + std::abs(g * u));
              expect_close<T>(out[0].at(r, i), value_at(c.act, g) * u, 8, 1 + std::abs(g * u), "y");
              expect_close<T>(out[1].at(r, i), d * u * slope, 8, scale, "dgate");
              expect_close<T>(out[1].at(r, c.cols + i), d * value_at(c.act, g), 8, scale, "dup");
            }
        });
  }
}

// z = w·act(g)·u: the gradient of z reaches g, u and w.
TYPED_TEST(Activations, WeightedGatedUnitsMatchTheComplexStep) {
  using T = TypeParam;
  using A = AccumulatorOf<T>;
  for (const GatedCase& c : gated_cases()) {
    SCOPED_TRACE(format("[{}, {}] gap {}, activation {}", c.rows, c.cols, c.gap, static_cast<int>(c.act)));
    Normal draw(23, 0, 2);
    TestTensor dy = TestTensor({c.rows, c.cols}, this->kType).fill(draw);
    TestTensor both = TestTensor({c.rows, 2 * c.cols}, this->kType, c.gap).fill(draw);
    TestTensor weights = TestTensor({c.rows}, DTypeOf<A>::value).fill(draw);
    on_every_device(
        [&](TestExec& ex) {
          TestTensor y({c.rows, c.cols}, this->kType), gradient = both, dweights({c.rows}, DTypeOf<A>::value);
          const Tensor gate = gradient.tensor().col_range(0, c.cols), up = gradient.tensor().col_range(c.cols, c.cols);
          run(ex, GatedForward{gate, up, y, weights, c.act});
          run(ex, GatedBackward{dy, gate, up, gate, up, weights, dweights, c.act});
          return std::vector<TestTensor>{y, gradient, dweights};
        },
        [&](const std::vector<TestTensor>& out) {
          for (int64_t r = 0; r < c.rows; ++r) {
            const double w = weights.at(r);
            double sum = 0, size = 0;
            for (int64_t i = 0; i < c.cols; ++i) {
              const double g = both.at(r, i), u = both.at(r, c.cols + i), d = dy.at(r, i);
              const double slope = slope_at(c.act, g),
                           scale = (1 + std::abs(d) * (1 + std::abs(g * u))) * (1 + std::abs(w));
              expect_close<T>(out[0].at(r, i), w * value_at(c.act, g) * u, 8, (1 + std::abs(w)) * (1 + std::abs(g * u)),
                              "y");
              expect_close<T>(out[1].at(r, i), w * d * u * slope, 8, scale, "dgate");
              expect_close<T>(out[1].at(r, c.cols + i), w * d * value_at(c.act, g), 8, scale, "dup");
              sum += d * value_at(c.act, g) * u, size += std::abs(d) * (1 + std::abs(g * u));
            }
            expect_close<A>(out[2].at(r), sum, static_cast<double>(8 + c.cols), size, "dweight");
          }
        });
  }
}

// Values of an independent program. x = 3·sin φ, φ = 1 + 37i + 11j + 3ij + 101k with the number k of the operand.
TEST(GatedUnits, HaveTheValuesOfTheReference) {
  device::CpuDevice device(1);
  Arena arena(device, Arena::Mode::heap);
  Meter meter;
  Exec ex{device, arena, meter};
  const auto made = [](int64_t k, double size) {
    TestTensor x({2, 4}, DType::f64);
    for (int64_t i = 0; i < 2; ++i)
      for (int64_t j = 0; j < 4; ++j)
        x.set(i * 4 + j, size * std::sin(static_cast<double>(1 + 37 * i + 11 * j + 3 * i * j + 101 * k)));
    return x;
  };
  TestTensor gate = made(0, 3), up = made(1, 1), dz = made(2, 1), z({2, 4}, DType::f64), dg = z, du = z;
  run(ex, GatedForward{gate, up, z, {}, Activation::gelu});
  run(ex, GatedBackward{dz, gate, up, dg, du, {}, {}, Activation::gelu});
  EXPECT_NEAR(z.at(0), 2.497246758268742, 1e-13);
  EXPECT_NEAR(dg.at(0), 9.620177733253724e-01, 1e-13);
  EXPECT_NEAR(du.at(0), 2.342824543376245, 1e-13);
}

TYPED_TEST(Activations, SigmoidAndItsGradientMatchTheComplexStep) {
  using T = TypeParam;
  using A = AccumulatorOf<T>;
  for (const Case& c : cases()) {
    Normal draw(24, 0, 4);
    TestTensor x = TestTensor({c.rows, c.cols}, DTypeOf<A>::value, c.gap).fill(draw);
    TestTensor dy = TestTensor({c.rows, c.cols}, DTypeOf<A>::value).fill(draw);
    on_every_device(
        [&](TestExec& ex) {
          TestTensor y({c.rows, c.cols}, DTypeOf<A>::value, c.gap), dx({c.rows, c.cols}, this->kType);
          run(ex, Sigmoid{x, y});
          run(ex, SigmoidBackward{dy, y, dx});
          return std::vector<TestTensor>{y, dx};
        },
        [&](const std::vector<TestTensor>& out) {
          for (int64_t r = 0; r < c.rows; ++r)
            for (int64_t i = 0; i < c.cols; ++i) {
              const std::complex<double> s = 1.0 / (1.0 + std::exp(-std::complex<double>(x.at(r, i), 1e-40)));
              expect_close<A>(out[0].at(r, i), s.real(), 8, 1, "y");
              expect_close<T>(out[1].at(r, i), dy.at(r, i) * s.imag() / 1e-40, 8, 1 + std::abs(dy.at(r, i)), "dx");
            }
        });
  }
}

}  // namespace
}  // namespace trainer::ops::testing
