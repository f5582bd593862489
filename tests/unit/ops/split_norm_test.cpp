#include "ops/split_norm.h"

#include "ops/norm.h"
#include "unit/ops/op_fixture.h"

namespace trainer::ops::testing {
namespace {

struct Case {
  int64_t rows, width, ranks, gap;
  bool center, bias;
  double mean = 0.5;
};
std::vector<Case> cases() {
  return {{1, 1, 2, 0, true, true},    {3, 7, 1, 0, true, true},      {5, 33, 2, 3, true, false},
          {37, 16, 3, 0, false, true}, {40, 19, 4, 1, true, true},    {131, 48, 2, 8, false, false},
          {4, 700, 2, 0, true, true},  {6, 40, 8, 0, true, true, 300}};  // far from zero: E[x²] − μ² would be noise
}

/// The norm of whole rows, in double precision.
struct Reference {
  std::vector<double> mean, rstd, y, dx, dgain, dbias;
  Reference(const Case& c, const TestTensor& x, const TestTensor& dy, const TestTensor& gain, const TestTensor& bias,
            double eps) {
    const int64_t hidden = c.width * c.ranks;
    const auto count = static_cast<double>(hidden);
    dgain.assign(static_cast<size_t>(hidden), 0);
    dbias = dgain;
    for (int64_t r = 0; r < c.rows; ++r) {
      double m = 0, squares = 0;
      if (c.center)
        for (int64_t i = 0; i < hidden; ++i) m += x.at(r, i) / count;
      for (int64_t i = 0; i < hidden; ++i) squares += (x.at(r, i) - m) * (x.at(r, i) - m);
      const double s = 1 / std::sqrt(squares / count + eps);
      double sum = 0, product = 0;
      for (int64_t i = 0; i < hidden; ++i) {
        const double n = (x.at(r, i) - m) * s, g = dy.at(r, i) * gain.at(i);
        y.push_back(n * gain.at(i) + (c.bias ? bias.at(i) : 0));
        sum += g;
        product += g * n;
        dgain[static_cast<size_t>(i)] += dy.at(r, i) * n;
        dbias[static_cast<size_t>(i)] += dy.at(r, i);
      }
      for (int64_t i = 0; i < hidden; ++i) {
        const double n = (x.at(r, i) - m) * s, g = dy.at(r, i) * gain.at(i);
        dx.push_back(s * (g - (c.center ? sum / count : 0) - n * product / count));
      }
      mean.push_back(m);
      rstd.push_back(s);
    }
  }
};

/// Columns [rank·W, (rank + 1)·W) of a matrix or vector.
TestTensor part_of(const TestTensor& whole, int64_t rank, int64_t width, int64_t gap) {
  const bool vector = whole.tensor().shape.dims() == 1;
  const int64_t rows = whole.tensor().rows();
  TestTensor part(vector ? Shape{width} : Shape{rows, width}, whole.tensor().dtype, vector ? 0 : gap);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < width; ++i) part.set(r * width + i, whole.at(r, rank * width + i));
  return part;
}

template <typename T>
struct SplitNorm : DeviceTest {
  static constexpr DType kType = DTypeOf<T>::value, kSums = accumulator_of(kType);
};
TYPED_TEST_SUITE(SplitNorm, ComputeTypes);

TYPED_TEST(SplitNorm, HalvesWithAnExchangeBetweenThemAreTheNormOfWholeRows) {
  using T = TypeParam;
  constexpr double kEpsilon = 1e-5;
  for (const Case& c : cases()) {
    SCOPED_TRACE(
        format("{} rows of {} x {}, gap {}, center {} bias {}", c.rows, c.ranks, c.width, c.gap, c.center, c.bias));
    const int64_t hidden = c.width * c.ranks, planes = norm_planes(c.center);
    Normal draw(31, c.mean, 2), small(32);
    const TestTensor x = TestTensor({c.rows, hidden}, this->kType).fill(draw),
                     dy = TestTensor({c.rows, hidden}, this->kType).fill(small);
    const TestTensor gain = TestTensor({hidden}, this->kType).fill(small),
                     bias = TestTensor({hidden}, this->kType).fill(small);
    const TestTensor residual = TestTensor({c.rows, hidden}, this->kType).fill(small);
    const TestTensor before = TestTensor({hidden}, this->kSums).fill(small);
    const Reference want(c, x, dy, gain, bias, kEpsilon);
    on_every_device(
        [&](TestExec& ex) {
          std::vector<TestTensor> xs, dys, gains, sums, results;
          TestTensor all({c.ranks, planes, c.rows}, this->kSums), total({planes, c.rows}, this->kSums);
          for (int64_t rank = 0; rank < c.ranks; ++rank) {
            xs.push_back(part_of(x, rank, c.width, c.gap));
            dys.push_back(part_of(dy, rank, c.width, c.gap));
            gains.push_back(part_of(gain, rank, c.width, 0));
            TestTensor moments({planes, c.rows}, this->kSums);
            run(ex, NormMoments{xs.back(), moments, c.center});
            for (int64_t i = 0; i < moments.count(); ++i) all.set(rank * moments.count() + i, moments.at(i));
          }
          TestTensor mean = c.center ? TestTensor({c.rows}, this->kSums) : TestTensor(), rstd({c.rows}, this->kSums);
          run(ex, NormMerge{all, mean, rstd, c.width, kEpsilon, c.center});
          for (int64_t i = 0; i < total.count(); ++i) total.set(i, 0);
          for (int64_t rank = 0; rank < c.ranks; ++rank) {
            const auto k = static_cast<size_t>(rank);
            TestTensor sum({planes, c.rows}, this->kSums);
            run(ex, SplitNormSums{dys[k], xs[k], gains[k], mean, rstd, sum, c.center});
            for (int64_t i = 0; i < total.count(); ++i) total.set(i, total.at(i) + sum.at(i));
          }
          results.push_back(rstd);
          if (c.center) results.push_back(mean);
          for (int64_t rank = 0; rank < c.ranks; ++rank) {
            const auto k = static_cast<size_t>(rank);
            TestTensor own_bias = c.bias ? part_of(bias, rank, c.width, 0) : TestTensor();
            TestTensor y({c.rows, c.width}, this->kType, c.gap), with = part_of(residual, rank, c.width, c.gap);
            TestTensor dgain = part_of(before, rank, c.width, 0), dbias = c.bias ? dgain : TestTensor(), plain = dys[k];
            run(ex, NormApply{xs[k], gains[k], own_bias, mean, rstd, y, c.center});
            run(ex,
                SplitNormBackward{
                    {dys[k], xs[k], gains[k], mean, rstd, with, with, dgain, dbias, c.center, true}, total, hidden});
            TestTensor other = part_of(before, rank, c.width, 0);
            run(ex,
                SplitNormBackward{{plain, xs[k], gains[k], mean, rstd, {}, plain, other, {}, c.center}, total, hidden});
            for (TestTensor* each : {&y, &with, &plain, &dgain, &other}) results.push_back(*each);
            if (c.bias) results.push_back(dbias);
          }
          return results;
        },
        [&](const std::vector<TestTensor>& out) {
          using A = AccumulatorOf<T>;
          // Statistics of values far from zero have an error in proportion to the mean.
          const double far = 1 + std::abs(c.mean);
          size_t at = 0;
          for (int64_t r = 0; r < c.rows; ++r)
            expect_close<A>(out[at].at(r), want.rstd[static_cast<size_t>(r)], 64 * far,
                            want.rstd[static_cast<size_t>(r)], format("rstd[{}]", r));
          ++at;
          if (c.center) {
            for (int64_t r = 0; r < c.rows; ++r)
              expect_close<A>(out[at].at(r), want.mean[static_cast<size_t>(r)], 16, far, format("mean[{}]", r));
            ++at;
          }
          for (int64_t rank = 0; rank < c.ranks; ++rank) {
            const TestTensor &y = out[at], &with = out[at + 1], &plain = out[at + 2], &dgain = out[at + 3],
                             &dg = out[at + 4];
            // One column on two ranks: only eps keeps the gradient finite.
            const double scale = c.width == 1 ? 1000 : 10 * far;
            for (int64_t r = 0; r < c.rows; ++r)
              for (int64_t i = 0; i < c.width; ++i) {
                const auto whole = static_cast<size_t>(r * hidden + rank * c.width + i);
                expect_close<T>(y.at(r, i), want.y[whole], 64, 4 * far, format("y[{}, {}]", r, i));
                expect_close<T>(plain.at(r, i), want.dx[whole], 64, scale, format("dx[{}, {}]", r, i));
                expect_close<T>(with.at(r, i), residual.at(r, rank * c.width + i) + want.dx[whole], 64, scale,
                                format("residual + dx[{}, {}]", r, i));
              }
            for (int64_t i = 0; i < c.width; ++i) {
              const auto whole = static_cast<size_t>(rank * c.width + i);
              const double wide = static_cast<double>(c.rows) * far;
              expect_close<A>(dgain.at(i), before.at(rank * c.width + i) + want.dgain[whole], 64, wide, "added dgain");
              expect_close<A>(dg.at(i), want.dgain[whole], 64, wide, "dgain");
              if (c.bias) expect_close<A>(out[at + 5].at(i), want.dbias[whole], 32, wide, "dbias");
            }
            at += c.bias ? 6 : 5;
          }
        });
  }
}

}  // namespace
}  // namespace trainer::ops::testing
