#include "ops/activation.h"

#include <complex>

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

template <typename T>
struct Activations : DeviceTest {
  static constexpr DType kType = DTypeOf<T>::value;
};
TYPED_TEST_SUITE(Activations, ComputeTypes);

struct Case {
  int64_t rows, cols, gap;
};
std::vector<Case> cases() { return {{1, 1, 0}, {3, 37, 0}, {5, 16, 3}, {6, 40, 8}, {7, 3001, 0}, {9, 4099, 5}}; }

TYPED_TEST(Activations, GeluMatchesTheFormula) {
  using T = TypeParam;
  for (const Case& c : cases()) {
    Normal draw(21, 0, 3);
    Grid x = Grid({c.rows, c.cols}, this->kType, c.gap).fill(draw);
    on_every_device(
        [&](TestExec& ex) {
          Grid y({c.rows, c.cols}, this->kType, c.gap);
          run(ex, GeluForward{x, y});
          Grid in_place = x;
          run(ex, GeluForward{in_place, in_place});
          EXPECT_TRUE(in_place.memory() == y.memory());
          return std::vector<Grid>{y};
        },
        [&](const std::vector<Grid>& out) {
          for (int64_t i = 0; i < x.count(); ++i)
            expect_close<T>(out[0].at(i), gelu(x.at(i)), 4, std::max(1.0, std::abs(x.at(i))),
                            format("gelu({})", x.at(i)));
        });
  }
}

TYPED_TEST(Activations, SwigluForwardAndBackwardMatchTheComplexStep) {
  using T = TypeParam;
  const double h = 1e-40;
  for (const Case& c : cases()) {
    SCOPED_TRACE(format("[{}, {}] gap {}", c.rows, c.cols, c.gap));
    Normal draw(22, 0, 2);
    Grid dy = Grid({c.rows, c.cols}, this->kType).fill(draw);
    Grid both = Grid({c.rows, 2 * c.cols}, this->kType, c.gap).fill(draw);  // gate and up are its column ranges
    on_every_device(
        [&](TestExec& ex) {
          Grid y({c.rows, c.cols}, this->kType), gradient = both;
          const Tensor gate = gradient.tensor().col_range(0, c.cols), up = gradient.tensor().col_range(c.cols, c.cols);
          run(ex, SwigluForward{gate, up, y});
          run(ex, SwigluBackward{dy, gate, up, gate, up});
          return std::vector<Grid>{y, gradient};
        },
        [&](const std::vector<Grid>& out) {
          for (int64_t r = 0; r < c.rows; ++r)
            for (int64_t i = 0; i < c.cols; ++i) {
              const double g = both.at(r, i), u = both.at(r, c.cols + i), d = dy.at(r, i);
              const double slope = silu(std::complex<double>(g, h)).imag() / h,
                           scale = 1 + std::abs(d) * (1 + std::abs(g * u));
              expect_close<T>(out[0].at(r, i), silu(g) * u, 8, 1 + std::abs(g * u), "y");
              expect_close<T>(out[1].at(r, i), d * u * slope, 8, scale, "dgate");
              expect_close<T>(out[1].at(r, c.cols + i), d * silu(g), 8, scale, "dup");
            }
        });
  }
}

}  // namespace
}  // namespace trainer::ops::testing
