// Muon's elementwise operators have the bits of plain loops on every instruction set, device and number of threads.
#include "ops/muon.h"

#include "ops/operands.h"
#include "ops/squared_norm.h"
#include "unit/ops/op_fixture.h"

namespace trainer::ops::testing {
namespace {

/// Normal draws of many magnitudes, with zeros of both signs and subnormals of f32 among them.
class Mixed {
 public:
  explicit Mixed(uint64_t seed) : engine_(seed) {}
  double operator()() {
    const uint64_t draw = engine_();
    const double value = draw_(engine_);
    switch (draw % 8) {
      case 0:
        return draw & 16 ? 0.0 : -0.0;
      case 1:
        return value * 1e-40;
      case 2:
        return value * 1e15;
      default:
        return value;
    }
  }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<double> draw_;
};

constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16};
/// True if the device has no kernels for a type.
bool lacks(DType dtype) { return on_cuda() && dtype == DType::f64; }

/// Returns x rounded to the type.
double rounded(double x, DType dtype) {
  if (dtype == DType::f64) return x;
  const auto narrow = static_cast<float>(x);
  return dtype == DType::f32 ? static_cast<double>(narrow) : static_cast<double>(bf16(narrow));
}
/// Return a·b and fma(a, b, c) of f32 or f64 values, rounded once to their type.
double product(double a, double b, DType type) {
  return type == DType::f64 ? a * b : static_cast<double>(static_cast<float>(a) * static_cast<float>(b));
}
double fused(double a, double b, double c, DType type) {
  return type == DType::f64
             ? std::fma(a, b, c)
             : static_cast<double>(std::fma(static_cast<float>(a), static_cast<float>(b), static_cast<float>(c)));
}

struct Want {
  int64_t differ = 0;
  void expect(const TestTensor& got, int64_t i, double want) {
    const double x = got.at(i);
    if ((x != want || std::signbit(x) != std::signbit(want)) && ++differ == 1)
      ADD_FAILURE() << "[" << i << "]: " << x << ", want " << want;
  }
};

struct Muon : DeviceTest {};

TEST_F(Muon, MomentumRoundsAsTheScalarLoop) {
  for (const DType type : {DType::f64, DType::f32})
    for (const bool nesterov : {true, false})
      for (const int64_t n : {int64_t{1}, int64_t{37}, 3 * kTaskElements + 5}) {
        if (lacks(type)) continue;
        SCOPED_TRACE(format("seed 81, {} [{}], nesterov {}", name_of(type), n, nesterov));
        Mixed draw(81);
        TestTensor m = TestTensor({n}, type).fill(draw), g = TestTensor({n}, type).fill(draw);
        const double mu = 0.95, scale = 0.37;
        on_every_device(
            [&](TestExec& ex) {
              TestTensor average = m, direction = g;
              run(ex, MuonMomentum{average, direction, mu, scale, nesterov});
              return std::vector<TestTensor>{average, direction};
            },
            [&](const std::vector<TestTensor>& out) {
              const auto r = [&](double x) { return rounded(x, type); };
              Want want;
              for (int64_t i = 0; i < n; ++i) {
                const double y = product(r(1 - mu), product(g.at(i), r(scale), type), type);
                const double average = fused(r(mu), m.at(i), y, type);
                want.expect(out[0], i, average);
                want.expect(out[1], i, nesterov ? fused(r(mu), average, y, type) : average);
              }
              EXPECT_EQ(want.differ, 0);
            });
      }
}

/// Rows of a matrix that is part of a wider one or is stored transposed, and one strip that is longer than a task.
std::vector<Strip> strips_of(bool transposed) {
  std::vector<Strip> strips;
  int64_t place = 0;
  for (int64_t row = 0; row < 41; ++row) {
    const int64_t length = row % 7 == 0 ? 1 : 33 + row % 3;
    strips.push_back(transposed ? Strip{5 + row, place, length, 43} : Strip{5 + row * 40, place, length, 1});
    place += length;
  }
  strips.push_back({2000, place, kStripElements + 3, 1});
  return strips;
}
TestTensor tensor_of(const std::vector<Strip>& strips) {
  TestTensor grid({static_cast<int64_t>(strips.size()), 4}, DType::i64);
  std::memcpy(grid.tensor().data, strips.data(), strips.size() * sizeof(Strip));
  return grid;
}

TEST_F(Muon, StripsMoveBetweenBuffersOfAllTypes) {
  for (const DType from : kTypes)
    for (const DType to : kTypes)
      for (const bool transposed : {false, true}) {
        if (lacks(from) || lacks(to)) continue;
        SCOPED_TRACE(format("seed 83, {} to {}, transposed {}", name_of(from), name_of(to), transposed));
        const std::vector<Strip> strips = strips_of(transposed);
        const int64_t packed_size = strips.back().place + strips.back().length, flat_size = 2000 + kStripElements + 9;
        const double scale = 5.5425625842204074;
        Mixed draw(83);
        TestTensor flat = TestTensor({flat_size}, from).fill(draw), packed = TestTensor({packed_size}, from).fill(draw);
        on_every_device(
            [&](TestExec& ex) {
              TestTensor in = flat, message({packed_size}, to), back = packed, buffer({flat_size}, to),
                         list = tensor_of(strips);
              message.fill([] { return 0.0; });
              buffer.fill([] { return 7.0; });
              run(ex, GatherStrips{in, list, message});
              run(ex, ScatterStrips{back, list, buffer, scale});
              return std::vector<TestTensor>{message, buffer};
            },
            [&](const std::vector<TestTensor>& out) {
              // The product's type: f64 if one of the two is, else f32; `scale` has the accumulator type of `to`.
              const DType wide = from == DType::f64 || to == DType::f64 ? DType::f64 : DType::f32;
              const double factor = rounded(scale, accumulator_of(to));
              std::vector<double> buffer(static_cast<size_t>(flat_size), 7.0);
              Want want;
              for (const Strip& s : strips)
                for (int64_t i = 0; i < s.length; ++i) {
                  want.expect(out[0], s.place + i, rounded(flat.at(s.at + i * s.stride), to));
                  buffer[static_cast<size_t>(s.at + i * s.stride)] =
                      rounded(product(packed.at(s.place + i), factor, wide), to);
                }
              for (int64_t i = 0; i < flat_size; ++i) want.expect(out[1], i, buffer[static_cast<size_t>(i)]);
              EXPECT_EQ(want.differ, 0);
            });
      }
}

TEST_F(Muon, NormalizationAddsSquaresInBlocks) {
  for (const DType type : kTypes)
    for (const int64_t n : {int64_t{1}, int64_t{100}, kNormBlock, 40 * kNormBlock + 77}) {
      if (lacks(type) || (on_cuda() && n > 4 * kNormBlock)) continue;
      for (const double factor : {1.0, 1e-12, 0.0}) {
        SCOPED_TRACE(format("seed 84, {} [{}] times {}", name_of(type), n, factor));
        Normal draw(84, 0, factor);
        TestTensor x = TestTensor({n}, type).fill(draw);
        const double room = 1.02, floor = 1e-7;
        double sum = 0;
        for (int64_t b = 0; b < n; b += kNormBlock) {
          double lanes[16] = {};
          for (int64_t i = b; i < std::min(n, b + kNormBlock); ++i) lanes[i % 16] += x.at(i) * x.at(i);
          for (int width = 8; width > 0; width /= 2)
            for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
          sum += lanes[0];
        }
        const DType wide = accumulator_of(type);
        const double inverse = rounded(1 / std::max(std::sqrt(sum) * room, floor), wide);
        on_every_device(
            [&](TestExec& ex) {
              TestTensor y = x, blocks({divide_up(n, kNormBlock)}, DType::f64);
              run(ex, MuonNormalize{y, blocks, room, floor});
              return std::vector<TestTensor>{y};
            },
            [&](const std::vector<TestTensor>& out) {
              Want want;
              for (int64_t i = 0; i < n; ++i) want.expect(out[0], i, rounded(product(x.at(i), inverse, wide), type));
              EXPECT_EQ(want.differ, 0);
            });
      }
    }
}

TEST_F(Muon, CombinationRoundsOnceMoreOnly) {
  for (const DType type : kTypes)
    for (const bool in_place : {false, true}) {
      if (lacks(type)) continue;
      SCOPED_TRACE(format("seed 85, {}, in place {}", name_of(type), in_place));
      const DType wide = accumulator_of(type);
      const int64_t n = 2 * kTaskElements + 11;
      Mixed draw(85);
      TestTensor sums = TestTensor({n}, wide).fill(draw), x = TestTensor({n}, type).fill(draw);
      const double alpha = 2.0315, beta = -4.7750;
      on_every_device(
          [&](TestExec& ex) {
            TestTensor a = sums, b = x, y({n}, type);
            run(ex, MuonCombine{a, b, in_place ? b : y, alpha, beta});
            return std::vector<TestTensor>{in_place ? b : y};
          },
          [&](const std::vector<TestTensor>& out) {
            Want want;
            for (int64_t i = 0; i < n; ++i) {
              const double scaled = product(rounded(beta, wide), x.at(i), wide);
              want.expect(out[0], i, rounded(fused(rounded(alpha, wide), sums.at(i), scaled, wide), type));
            }
            EXPECT_EQ(want.differ, 0);
          });
    }
}

TEST_F(Muon, OperatorsOnNothingDoNothing) {
  Machine machine(1);
  const DType f32 = DType::f32;
  const auto empty = [](DType type) { return Tensor{nullptr, {0}, type, 0}; };
  ops::run(static_cast<Exec&>(machine.ex), MuonMomentum{empty(f32), empty(f32), 0.95, 1, true});
  ops::run(static_cast<Exec&>(machine.ex),
           GatherStrips{empty(f32), {nullptr, {0, 4}, DType::i64, 0}, empty(DType::bf16)});
  ops::run(static_cast<Exec&>(machine.ex),
           ScatterStrips{empty(DType::bf16), {nullptr, {0, 4}, DType::i64, 0}, empty(f32), 1});
}

}  // namespace
}  // namespace trainer::ops::testing
