#include "ops/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "ops/cpu/gemm.h"

namespace trainer::ops {
namespace {

using device::Isa;

/// A matrix in its own memory, rows `pitch` apart; what lies between the rows is a sentinel that must survive.
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

constexpr double kGelu = 0.79788456080286535588, kCubic = 0.044715;
double gelu(double x) { return 0.5 * x * (1 + std::tanh(kGelu * (x + kCubic * x * x * x))); }
double gelu_grad(double x) {
  const double t = std::tanh(kGelu * (x + kCubic * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kGelu * (1 + 3 * kCubic * x * x);
}

enum class Ending { none, bias, gelu, gelu_no_pre, gradient, residual, residual_in_place, all, accumulate };
constexpr Ending kEndings[] = {Ending::none,
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
std::string text(const Case& c) {
  return format("m {} n {} k {} {}->{} ta {} tb {} ending {} gap {}", c.m, c.n, c.k, name_of(c.in), name_of(c.out),
                c.trans_a, c.trans_b, static_cast<int>(c.ending), c.gap);
}

/// A product with random operands, its reference and its error bound.
struct Problem {
  explicit Problem(const Case& wanted) : c(wanted) {
    std::mt19937 random(static_cast<unsigned>(17 + wanted.m * 31 + wanted.n * 7 + wanted.k));
    std::normal_distribution<double> normal;
    std::uniform_int_distribution<int> small(-4, 4);
    const auto next = [&] { return wanted.integers ? small(random) : normal(random); };
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
    value.resize(count), pre_value.resize(count), bound.resize(count), pre_bound.resize(count);
    std::vector<double> sums(count), sizes(count), row(static_cast<size_t>(c.n));
    for (int64_t t = 0; t < c.k; ++t) {
      for (int64_t j = 0; j < c.n; ++j) row[static_cast<size_t>(j)] = c.trans_b ? b.at(j, t) : b.at(t, j);
      for (int64_t i = 0; i < c.m; ++i) {
        const double x = c.trans_a ? a.at(t, i) : a.at(i, t);
        double *sum = &sums[static_cast<size_t>(i * c.n)], *size = &sizes[static_cast<size_t>(i * c.n)];
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
        // 16 units cover the activation and the additions behind the sum.
        bound[at] = sum_eps * (static_cast<double>(c.k) * size * std::abs(slope) +
                               16 * (size + std::abs(sum) + std::abs(added) + 1)) +
                    1.01 * round_eps * std::abs(value[at]);
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
      }
    EXPECT_TRUE(out.gaps_intact()) << text(c);
    EXPECT_TRUE(!op.epilogue.pre || pre.gaps_intact()) << text(c);
  }

  Case c;
  Matrix a, b, out, bias, pre, residual;
  Gemm op;
  std::vector<double> value, pre_value, bound, pre_bound;
};

/// A CPU with a heap arena.
struct Machine {
  explicit Machine(int threads, Isa isa) : cpu(threads, isa), arena(cpu, Arena::Mode::heap) {}
  Exec exec() { return {cpu, arena, meter}; }
  device::CpuDevice cpu;
  Arena arena;
  Meter meter;
};

std::vector<Isa> available() {
  std::vector<Isa> sets{Isa::plain};
  if (device::detect_isa() >= Isa::avx2) sets.push_back(Isa::avx2);
  if (device::detect_isa() >= Isa::avx512) sets.push_back(Isa::avx512);
  return sets;
}

constexpr std::pair<DType, DType> kTypes[] = {
    {DType::f64, DType::f64}, {DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}};

template <typename F>
void for_each_case(const std::vector<std::array<int64_t, 3>>& sizes, F&& fn) {
  for (const auto& [m, n, k] : sizes)
    for (const auto& [in, out] : kTypes)
      for (const bool trans_a : {false, true})
        for (const bool trans_b : {false, true}) fn(Case{m, n, k, in, out, trans_a, trans_b});
}

const std::vector<std::array<int64_t, 3>> kOddSizes = {
    {1, 1, 1},      {1, 17, 9},    {1, 530, 70},   {2, 33, 31}, {3, 5, 258},  {5, 40, 64},
    {8, 70, 19},    {9, 1, 40},    {9, 16, 3},     {13, 37, 1}, {31, 47, 53}, {97, 31, 65},
    {100, 515, 33}, {50, 65, 300}, {121, 90, 517}, {7, 3, 0},   {20, 33, 0},
};

TEST(Gemm, MatchesDoublePrecisionForEveryTransposeTypeAndOddSize) {
  for (const Isa isa : available()) {
    Machine machine(2, isa);
    for_each_case(kOddSizes, [&](Case c) {
      c.gap = c.n % 3;
      Problem problem(c);
      Exec ex = machine.exec();
      run(ex, problem.op);
      problem.expect_result();
    });
  }
}

TEST(Gemm, AppliesEveryEpilogueOnce) {
  for (const Isa isa : available()) {
    Machine machine(2, isa);
    for (const auto& [in, out] : kTypes)
      for (const Ending ending : kEndings) {
        if (ending == Ending::accumulate && out == DType::bf16) continue;
        for (const auto& [m, n, k] : std::initializer_list<std::array<int64_t, 3>>{
                 {3, 45, 70}, {40, 51, 30}, {70, 40, 700}, {20, 19, 0}, {2, 19, 0}})
          for (const bool trans_b : {false, true}) {
            Problem problem({m, n, k, in, out, false, trans_b, ending, 3});
            Exec ex = machine.exec();
            run(ex, problem.op);
            problem.expect_result();
          }
      }
  }
}

TEST(Gemm, IsExactOnSmallIntegers) {
  for (const Isa isa : available()) {
    Machine machine(2, isa);
    for_each_case({{4, 70, 33}, {61, 70, 300}, {15, 600, 20}}, [&](Case c) {
      if (c.out == DType::bf16) return;
      c.integers = true;
      Problem problem(c);
      Exec ex = machine.exec();
      run(ex, problem.op);
      problem.expect_result();
    });
  }
}

TEST(Gemm, HasTheSameBitsForEveryThreadCountAndForPackedWeights) {
  for (const Isa isa : available())
    for_each_case({{6, 600, 90}, {130, 1100, 280}, {40, 20, 600}}, [&](Case c) {
      Problem problem(c);
      std::vector<std::byte> first;
      for (const int threads : {1, 2, 3, 7})
        for (const bool packed : {false, true}) {
          Machine machine(threads, isa);
          Exec ex = machine.exec();
          Buffer weight;
          problem.op.packed_b = {};
          if (packed) {
            weight = Buffer(machine.cpu, "packed", {packed_bytes(machine.cpu, c.in, c.k, c.n)}, DType::u8);
            run(ex, PackB{problem.op.b, weight, c.trans_b});
            problem.op.packed_b = weight;
          }
          run(ex, problem.op);
          if (first.empty()) {
            problem.expect_result();
            first = problem.out.memory;
          }
          EXPECT_EQ(problem.out.memory, first) << text(c) << ", threads " << threads << ", packed " << packed;
        }
    });
}

// More of B than is packed at a time: chunks along n, along k and along both, with sums kept between them.
TEST(Gemm, CutsLargeOperandsIntoChunks) {
  const Isa isa = device::detect_isa();
  for (const auto& [m, n, k] :
       std::initializer_list<std::array<int64_t, 3>>{{10, 9000, 600}, {11, 300, 17000}, {9, 1100, 9000}})
    for (const bool packed : {false, true}) {
      Problem problem({m, n, k, DType::bf16, DType::bf16, false, true, Ending::residual_in_place});
      Machine machine(2, isa);
      Exec ex = machine.exec();
      Buffer weight;
      if (packed) {
        weight = Buffer(machine.cpu, "packed", {packed_bytes(machine.cpu, DType::bf16, k, n)}, DType::u8);
        run(ex, PackB{problem.op.b, weight, true});
        problem.op.packed_b = weight;
      }
      run(ex, problem.op);
      problem.expect_result();
    }
}

TEST(Gemm, TallRegisterBlockOfWideSetsAgreesAtNarrowVectors) {
  if (device::detect_isa() < Isa::avx2) GTEST_SKIP() << "needs AVX2";
  Machine machine(2, Isa::avx2);
  for_each_case(kOddSizes, [&](Case c) {
    Problem problem(c);
    Exec ex = machine.exec();
    own_product(ex, problem.op, avx2::gemm_table_tall);
    problem.expect_result();
  });
}

TEST(Gemm, LeavesNothingToDoWithoutRowsOrColumns) {
  Machine machine(2, device::detect_isa());
  Exec ex = machine.exec();
  for (const auto& [m, n] : {std::pair<int64_t, int64_t>{0, 5}, {5, 0}}) {
    Problem problem({m, n, 4, DType::f32, DType::f32});
    run(ex, problem.op);
  }
  EXPECT_EQ(machine.meter.of(OpKind::gemm).calls, 2);
}

TEST(Gemm, NanAndInfinityStayInTheirRowAndColumn) {
  Machine machine(2, device::detect_isa());
  Problem problem({20, 37, 19, DType::f32, DType::f32});
  problem.a.set(3, 5, std::numeric_limits<double>::quiet_NaN());
  problem.b.set(7, 36, std::numeric_limits<double>::infinity());
  Exec ex = machine.exec();
  run(ex, problem.op);
  for (int64_t i = 0; i < 20; ++i)
    for (int64_t j = 0; j < 37; ++j) EXPECT_EQ(std::isfinite(problem.out.at(i, j)), i != 3 && j != 36) << i << " " << j;
}

TEST(Gemm, DryDeviceTakesTheScratchOfTheRealOne) {
  for (const auto& [m, n, k] :
       std::initializer_list<std::array<int64_t, 3>>{{300, 800, 500}, {3, 700, 60}, {12, 5000, 2000}}) {
    Problem problem({m, n, k, DType::f32, DType::f32, true, false});
    device::CpuDevice cpu(2);
    device::DryDevice dry(2);
    Arena arena(cpu);
    Meter dry_meter, meter;
    arena.record("product", [&] {
      Exec ex{dry, arena, dry_meter};
      Gemm op = problem.op;
      op.a.data = op.b.data = op.c.data = nullptr;
      run(ex, op);
    });
    arena.seal();
    arena.begin("product");
    Exec ex{cpu, arena, meter};
    run(ex, problem.op);
    arena.end();
    problem.expect_result();
    EXPECT_EQ(dry_meter.of(OpKind::gemm).flops, meter.of(OpKind::gemm).flops);
    EXPECT_EQ(meter.of(OpKind::gemm).flops, 2.0 * static_cast<double>(m * n * k));
  }
}

TEST(Gemm, NamesTheShapesThatDoNotFit) {
  Machine machine(1, device::detect_isa());
  Problem problem({4, 6, 5, DType::f32, DType::f32});
  problem.op.trans_b = true;
  Exec ex = machine.exec();
  try {
    run(ex, problem.op);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("[5, 6]"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace trainer::ops
