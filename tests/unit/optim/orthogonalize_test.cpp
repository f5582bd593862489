// Newton-Schulz compared with a plain loop in f64, and whole updates of one rank against golden values.
#include "optim/orthogonalize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "ops/muon.h"
#include "ops/update.h"
#include "tensor/host_copy.h"

using namespace trainer;
using optim::NewtonSchulz;
using Coefficients = config::MuonCoefficients;
using config::MuonScale;

namespace {

using Values = std::vector<double>;

struct Machine {
  explicit Machine(int threads = 1, device::Isa isa = device::detect_isa()) : device(threads, isa) {}
  device::CpuDevice device;
  Arena arena{device, Arena::Mode::heap};
  Meter meter;
  Exec ex{device, arena, meter};

  Scratch tensor(const Values& values, Shape shape, DType dtype) {
    Scratch t = ex.take("test", shape, dtype);
    for (int64_t i = 0; i < shape.count(); ++i) {
      const double x = values[static_cast<size_t>(i)];
      if (dtype == DType::f64) t.tensor().as<double>()[i] = x;
      if (dtype == DType::f32) t.tensor().as<float>()[i] = static_cast<float>(x);
      if (dtype == DType::bf16) t.tensor().as<bf16>()[i] = bf16(x);
    }
    return t;
  }
};
Values values_of(const Tensor& t) {
  Values out(static_cast<size_t>(t.count()));
  for (int64_t i = 0; i < t.count(); ++i)
    out[static_cast<size_t>(i)] = t.dtype == DType::f64   ? t.as<double>()[i]
                                  : t.dtype == DType::f32 ? static_cast<double>(t.as<float>()[i])
                                                          : static_cast<double>(t.as<bf16>()[i]);
  return out;
}

Values gauss(int64_t n, uint64_t seed, double factor = 1) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> draw;
  Values x(static_cast<size_t>(n));
  for (double& value : x) value = draw(engine) * factor;
  return x;
}

/// Returns the singular values, largest first, by rotations of pairs of columns (one-sided Jacobi).
Values singular_values(Values x, int64_t rows, int64_t cols) {
  if (rows < cols) {
    Values y(x.size());
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) y[static_cast<size_t>(c * rows + r)] = x[static_cast<size_t>(r * cols + c)];
    return singular_values(std::move(y), cols, rows);
  }
  const auto at = [&](int64_t r, int64_t c) -> double& { return x[static_cast<size_t>(r * cols + c)]; };
  for (bool turned = true; turned;) {
    turned = false;
    for (int64_t i = 0; i < cols; ++i)
      for (int64_t j = i + 1; j < cols; ++j) {
        double aa = 0, bb = 0, ab = 0;
        for (int64_t r = 0; r < rows; ++r) {
          aa += at(r, i) * at(r, i);
          bb += at(r, j) * at(r, j);
          ab += at(r, i) * at(r, j);
        }
        if (std::abs(ab) <= 1e-13 * std::sqrt(aa * bb)) continue;
        turned = true;
        const double tau = (bb - aa) / (2 * ab);
        const double t = (tau >= 0 ? 1 : -1) / (std::abs(tau) + std::sqrt(1 + tau * tau)), c = 1 / std::sqrt(1 + t * t);
        for (int64_t r = 0; r < rows; ++r) {
          const double a = at(r, i), b = at(r, j);
          at(r, i) = c * (a - t * b);
          at(r, j) = c * (b + t * a);
        }
      }
  }
  Values s;
  for (int64_t c = 0; c < cols; ++c) {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) sum += at(r, c) * at(r, c);
    s.push_back(std::sqrt(sum));
  }
  std::ranges::sort(s, std::greater());
  return s;
}
double norm_of(const Values& x) { return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0)); }

/// Returns the iterations' result for a singular value.
double mapped(double sigma, const NewtonSchulz& how) {
  const double polar[5][3] = {{8.156554524902461, -22.48329292557795, 15.878769915207462},
                              {4.042929935166739, -2.808917465908714, 0.5000178451051316},
                              {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
                              {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
                              {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}};
  for (int i = 0; i < how.steps; ++i) {
    const double square = sigma * sigma;
    const double* p = polar[std::min(i, 4)];
    sigma *= how.coefficients == Coefficients::polar ? p[0] + p[1] * square + p[2] * square * square
                                                     : 3.4445 - 4.7750 * square + 2.0315 * square * square;
  }
  return sigma;
}

Values orthogonalized(const Values& x, Shape shape, DType dtype, const NewtonSchulz& how = {}, int threads = 1,
                      device::Isa isa = device::detect_isa()) {
  Machine machine(threads, isa);
  const Scratch tensor = machine.tensor(x, shape, dtype);
  optim::orthogonalize(machine.ex, tensor, how);
  return values_of(tensor);
}

TEST(Orthogonalize, MapsSingularValues) {
  for (const Shape shape :
       {Shape{1, 1}, Shape{1, 7}, Shape{7, 1}, Shape{3, 1000}, Shape{1000, 3}, Shape{17, 33}, Shape{24, 24}})
    for (const Coefficients coefficients : {Coefficients::jordan, Coefficients::polar})
      for (const int steps : {1, 5, 7}) {
        const NewtonSchulz how{coefficients, steps};
        SCOPED_TRACE(format("seed 7, {}, {} steps", to_string(shape), steps));
        const Values x = gauss(shape.count(), 7);
        const double room = coefficients == Coefficients::polar ? 1.02 : 1;
        Values want = singular_values(x, shape[0], shape[1]);
        for (double& s : want) s = std::abs(mapped(s / (norm_of(x) * room), how));
        std::ranges::sort(want, std::greater());
        const Values got = singular_values(orthogonalized(x, shape, DType::f64, how), shape[0], shape[1]);
        for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-11) << i;
      }
}

TEST(Orthogonalize, OfATransposedMatrixIsTheTransposedOne) {
  const Values x = gauss(4 * 6, 11);
  Values y(x.size());
  for (size_t r = 0; r < 4; ++r)
    for (size_t c = 0; c < 6; ++c) y[c * 4 + r] = x[r * 6 + c];
  const Values wide = orthogonalized(x, {4, 6}, DType::f64), tall = orthogonalized(y, {6, 4}, DType::f64);
  for (size_t r = 0; r < 4; ++r)
    for (size_t c = 0; c < 6; ++c) EXPECT_NEAR(tall[c * 4 + r], wide[r * 6 + c], 1e-14);
}

/// ‖a − b‖ / ‖b‖.
double error(const Values& a, const Values& b) {
  Values difference = a;
  for (size_t i = 0; i < b.size(); ++i) difference[i] -= b[i];
  return norm_of(difference) / norm_of(b);
}

TEST(Orthogonalize, InLowerPrecisionIsClose) {
  for (const Shape shape : {Shape{96, 96}, Shape{96, 384}, Shape{384, 96}}) {
    const Values x = gauss(shape.count(), 13), exact = orthogonalized(x, shape, DType::f64);
    EXPECT_LT(error(orthogonalized(x, shape, DType::f32), exact), 2e-5) << to_string(shape);
    const double bf16_error = error(orthogonalized(x, shape, DType::bf16), exact);
    EXPECT_LT(bf16_error, 0.03) << to_string(shape);
    EXPECT_GT(bf16_error, 1e-4) << to_string(shape);
  }
}

TEST(Orthogonalize, DoesNotKnowTheScaleAndSurvivesItsExtremes) {
  const Shape shape{5, 9};
  const Values x = gauss(shape.count(), 17);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    SCOPED_TRACE(name_of(dtype));
    const auto scaled = [&](double factor) {
      Values y = x;
      for (double& value : y) value *= factor;
      return orthogonalized(y, shape, dtype);
    };
    const Values plain = orthogonalized(x, shape, dtype);
    EXPECT_EQ(scaled(0x1p-10), plain);  // a power of two
    for (const double value : scaled(1e30)) EXPECT_TRUE(std::isfinite(value));
    EXPECT_LT(error(scaled(1e30), plain), dtype == DType::bf16 ? 0.1 : 1e-4);
    for (const double value : scaled(0)) EXPECT_EQ(value, 0);
    // Below the guard of 1e-7 the update is smaller, and never divided by zero: a norm of 1e-9 becomes 0.01, which five
    // iterations multiply by 3.4445 each.
    const Values small = scaled(1e-9 / norm_of(x));
    EXPECT_NEAR(norm_of(small), norm_of(Values{mapped(0.01, {})}), 3.0);
    EXPECT_GT(norm_of(small), 0.1);
    // Subnormal in f32 and bf16.
    for (const double value : scaled(1e-39)) EXPECT_LT(std::abs(value), 1e-25);
  }
}

TEST(Orthogonalize, IsTheSameForAnyNumberOfThreads) {
  for (const Shape shape : {Shape{70, 300}, Shape{300, 70}})
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      const Values x = gauss(shape.count(), 19), one = orthogonalized(x, shape, dtype);
      for (const int threads : {1, 3, 7}) EXPECT_EQ(orthogonalized(x, shape, dtype, {}, threads), one) << threads;
    }
}

TEST(Orthogonalize, IsMeteredApartFromTheModel) {
  for (const Shape shape : {Shape{12, 40}, Shape{40, 12}}) {
    Machine machine;
    const Scratch x = machine.tensor(gauss(shape.count(), 23), shape, DType::bf16);
    optim::orthogonalize(machine.ex, x, {});
    const double k = 12, n = 40;
    EXPECT_EQ(machine.meter.of(OpKind::orthogonalize).flops, 20 * k * k * n + 10 * k * k * k);
    EXPECT_EQ(machine.meter.of(OpKind::orthogonalize).calls, 15);
    EXPECT_EQ(machine.meter.matmul_flops(), 0);
    EXPECT_EQ(optim::orthogonalize_flops(shape, 5), 20 * k * k * n + 10 * k * k * k);
    EXPECT_EQ(optim::orthogonalize_flops(shape, 3), 12 * k * k * n + 6 * k * k * k);
  }
}

TEST(Orthogonalize, TakesThePredictedMemoryBesideThatOfProducts) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const Shape shape : {Shape{32, 96}, Shape{96, 32}, Shape{64, 64}, Shape{512, 1024}}) {
      device::DryDevice dry(1);
      Arena arena(dry);
      Meter meter;
      Exec ex{dry, arena, meter};
      arena.record("update", [&] { optim::orthogonalize(ex, {nullptr, shape, dtype, 0}, {}); });
      int64_t own = 0;
      for (const auto& [tag, bytes] : arena.peak_by_tag("update"))
        if (tag.starts_with("muon.")) own += bytes;
      // The Gram matrix, and the larger of the two GEMM results before rounding.
      const int64_t k = std::min(shape[0], shape[1]);
      const int64_t want = k * k * size_of(dtype) + shape.count() * size_of(accumulator_of(dtype));
      EXPECT_EQ(own, want) << to_string(shape) << " " << name_of(dtype);
    }
}

/// Updates of one matrix on one rank, from P0[i, j] = cos(2i − j)/10 with G_t[i, j] = sin(t + 3i + 7j)/(1 + i + j).
struct Case {
  int64_t rows, cols;
  bool nesterov = true;
  MuonScale scale = MuonScale::rms;
  Coefficients coefficients = Coefficients::jordan;
  Values clip = {1, 1, 1};
  bool zero = false;  // gradients
};
struct State {
  Values p, m;
};
/// The position of element (i, j) in a flat buffer.
struct Storage {
  int64_t count, offset, row, col;
  size_t at(int64_t i, int64_t j) const { return static_cast<size_t>(offset + i * row + j * col); }
};
State updated(const Case& c, int steps, DType state, const Storage& storage) {
  Machine machine;
  const Shape shape{c.rows, c.cols};
  const double lr = 0.02, decay = 0.1;
  Values p(static_cast<size_t>(storage.count)), zeros = p, g = p;
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t j = 0; j < c.cols; ++j) p[storage.at(i, j)] = std::cos(static_cast<double>(2 * i - j)) / 10;
  const Scratch weights = machine.tensor(p, {storage.count}, state),
                average = machine.tensor(zeros, {storage.count}, state);
  const Scratch x = machine.ex.take("x", shape, state), strips = machine.ex.take("strips", {c.rows, 4}, DType::i64);
  for (int64_t i = 0; i < c.rows; ++i) {
    const int64_t strip[4] = {static_cast<int64_t>(storage.at(i, 0)), i * c.cols, c.cols, storage.col};
    std::copy_n(strip, 4, strips.tensor().as<int64_t>() + 4 * i);
  }
  for (int t = 1; t <= steps; ++t) {
    for (int64_t i = 0; i < c.rows; ++i)
      for (int64_t j = 0; j < c.cols; ++j)
        g[storage.at(i, j)] =
            c.zero ? 0 : std::sin(static_cast<double>(t + 3 * i + 7 * j)) / static_cast<double>(1 + i + j);
    const Scratch gradient = machine.tensor(g, {storage.count}, state);
    const Tensor flat = x.tensor().reshape({shape.count()});
    ops::run(machine.ex, ops::MuonMomentum{.m = average,
                                           .g = gradient,
                                           .momentum = 0.95,
                                           .gradient_scale = c.clip[static_cast<size_t>(t - 1)],
                                           .nesterov = c.nesterov});
    ops::run(machine.ex, ops::GatherStrips{.flat = gradient, .strips = strips, .packed = flat});
    optim::orthogonalize(machine.ex, x, {c.coefficients, 5});
    ops::run(machine.ex,
             ops::ScatterStrips{
                 .packed = flat, .strips = strips, .flat = gradient, .scale = optim::update_scale(c.scale, shape)});
    const double scalars[ops::rules::Sgd::scalars] = {0, -lr, -lr * decay, -HUGE_VAL};
    ops::run(
        machine.ex,
        ops::Update{
            .rule = ops::RuleId::Sgd, .p = weights, .states = {}, .g = gradient, .compute = {}, .scalars = scalars});
  }
  State out;
  const Values all = values_of(weights), averages = values_of(average);
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t j = 0; j < c.cols; ++j) {
      out.p.push_back(all[storage.at(i, j)]);
      out.m.push_back(averages[storage.at(i, j)]);
    }
  return out;
}
Storage plain(const Case& c) { return {c.rows * c.cols, 0, c.cols, 1}; }

struct Golden {
  Case c;
  int t;
  double first, inner, last;  // p[0,0], p[1,2], p[rows − 1, cols − 1]
};
std::vector<Golden> goldens() {
  return {
      {{4, 6}, 1, 0.0919063453462636, 0.100665692500691, 0.0535631611436409},
      {{4, 6}, 2, 0.0845713108868283, 0.0984510767749332, 0.0511310757123973},
      {{4, 6}, 3, 0.0771289018589321, 0.0925405964052597, 0.047040342487764},
      {{6, 4}, 1, 0.0924272501877056, 0.0982692943319859, 0.0823319297999096},
      {{6, 4}, 3, 0.0778972419313558, 0.089510727802412, 0.0904790981495288},
      {{5, 5}, 1, 0.0928184153565644, 0.0990262932100162, -0.0705356789456809},
      {{5, 5}, 3, 0.078882883490287, 0.0903437085117373, -0.0709300336334594},
      {{.rows = 4, .cols = 6, .scale = MuonScale::spectral},
       3,
       0.0437204558473303,
       0.0822496922131493,
       0.0370408105186825},
      {{.rows = 6, .cols = 4, .scale = MuonScale::spectral},
       3,
       0.0555064302343402,
       0.0792123590002647,
       0.106660313091156},
      {{.rows = 4, .cols = 6, .nesterov = false}, 3, 0.0771606467818116, 0.0953691813508013, 0.0483347290763913},
      {{.rows = 4, .cols = 6, .clip = {1, 0.25, 0.5}}, 3, 0.0768678517447717, 0.0958645597390343, 0.0486147456415412},
      {{.rows = 4, .cols = 6, .coefficients = Coefficients::polar},
       3,
       0.0706532968407637,
       0.0889926623810244,
       0.0465386306914347}};
}

TEST(MuonUpdate, EqualsItsGoldenValues) {
  const double averages[3] = {-0.00938734058464596, -0.00704450843462675, 0.00471953262119994};  // m[1, 2]
  for (const Golden& golden : goldens()) {
    const Case& c = golden.c;
    SCOPED_TRACE(format("{} x {}, t = {}", c.rows, c.cols, golden.t));
    for (const auto& [state, tolerance] : {std::pair(DType::f64, 1e-12), std::pair(DType::f32, 1e-5)}) {
      const State got = updated(c, golden.t, state, plain(c));
      EXPECT_NEAR(got.p.front(), golden.first, tolerance);
      EXPECT_NEAR(got.p[static_cast<size_t>(c.cols + 2)], golden.inner, tolerance);
      EXPECT_NEAR(got.p.back(), golden.last, tolerance);
      if (c.clip == Values{1, 1, 1}) {
        EXPECT_NEAR(got.m[static_cast<size_t>(c.cols + 2)], averages[golden.t - 1], tolerance);
      }
    }
  }
}

TEST(MuonUpdate, DoesNotDependOnWhereAMatrixIsStored) {
  for (const DType state : {DType::f64, DType::f32}) {
    const Case c{4, 6};
    const State want = updated(c, 3, state, plain(c));
    const State joined = updated(c, 3, state, {100, 7, 17, 1}), transposed = updated(c, 3, state, {40, 3, 1, 4});
    EXPECT_EQ(joined.p, want.p);
    EXPECT_EQ(joined.m, want.m);
    EXPECT_EQ(transposed.p, want.p);
    EXPECT_EQ(transposed.m, want.m);
  }
}

TEST(MuonUpdate, WithoutGradientsOnlyDecays) {
  const Case c{.rows = 4, .cols = 6, .zero = true};
  const State got = updated(c, 3, DType::f64, plain(c));
  for (int64_t i = 0; i < 4; ++i)
    for (int64_t j = 0; j < 6; ++j)
      EXPECT_NEAR(got.p[static_cast<size_t>(6 * i + j)],
                  std::cos(static_cast<double>(2 * i - j)) / 10 * std::pow(0.998, 3), 1e-16);
}

TEST(MuonUpdate, IgnoresAConstantPowerOfTwo) {
  for (const DType state : {DType::f64, DType::f32}) {
    const Case c{4, 6}, quarter{.rows = 4, .cols = 6, .clip = {0.25, 0.25, 0.25}};
    EXPECT_EQ(updated(quarter, 3, state, plain(c)).p, updated(c, 3, state, plain(c)).p);
  }
}

}  // namespace
