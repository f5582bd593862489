#include "ops/merge_attention.h"

#include <algorithm>

#include "unit/ops/op_fixture.h"

namespace trainer::ops::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename T>
struct Merge : DeviceTest {};
TYPED_TEST_SUITE(Merge, ComputeTypes);

/// Partial results of sequences · q_len rows of `heads` heads.
struct Parts {
  int64_t sequences, q_len, heads, head_dim;
  int64_t row_of(int64_t row, int64_t head) const {  // in the log-sum-exps
    return (row / q_len * heads + head) * q_len + row % q_len;
  }
  TestTensor outputs(DType dtype, int64_t gap) const { return {{sequences * q_len, heads * head_dim}, dtype, gap}; }
  TestTensor lses(DType dtype) const { return {{sequences * heads, q_len}, dtype}; }
};
struct Partial {
  TestTensor out, lse;
};
/// Merges all parts into one, in order.
Partial merged(TestExec& ex, const Parts& shape, std::vector<Partial>& parts, DType sums) {
  Partial sum{shape.outputs(sums, 5).fill([] { return std::nan(""); }),
              shape.lses(sums).fill([] { return std::nan(""); })};
  for (size_t i = 0; i < parts.size(); ++i)
    run(ex, MergeAttention{parts[i].out, parts[i].lse, sum.out, sum.lse, shape.heads, shape.q_len, i == 0});
  return sum;
}

TYPED_TEST(Merge, ComputesTheGoldenValues) {
  struct Golden {
    double z1, z2, out, lse;
  };
  // The outputs are 1 and 3; a row that has seen no key has output 0.
  const std::vector<Golden> golden = {{0, 0, 2, 0.693147180559945},
                                      {1, -1, 1.23840584404423, 1.12692801104297},
                                      {88.8, 89.8, 2.46211715726001, 90.1132616875182},
                                      {900, -900, 1, 900},
                                      {-kInfinity, 2.5, 3, 2.5},
                                      {2.5, -kInfinity, 1, 2.5},
                                      {-kInfinity, -kInfinity, 0, -kInfinity}};
  const DType type = DTypeOf<TypeParam>::value, sums = accumulator_of(type);
  const Parts shape{1, static_cast<int64_t>(golden.size()), 1, 19};
  std::vector<Partial> parts(2, {shape.outputs(type, 0), shape.lses(sums)});
  for (size_t p = 0; p < 2; ++p)
    for (int64_t r = 0; r < shape.q_len; ++r) {
      const double z = p == 0 ? golden[r].z1 : golden[r].z2;
      parts[p].lse.set(r, z);
      for (int64_t e = 0; e < 19; ++e) parts[p].out.set(r * 19 + e, z == -kInfinity ? 0 : p == 0 ? 1 : 3);
    }
  on_every_device(
      [&](TestExec& ex) {
        Partial sum = merged(ex, shape, parts, sums);
        return std::vector<TestTensor>{sum.out, sum.lse};
      },
      [&](const std::vector<TestTensor>& sum) {
        const double bound = sums == DType::f64 ? 1e-14 : 1e-6;
        for (int64_t r = 0; r < shape.q_len; ++r) {
          const Golden& g = golden[r];
          for (int64_t e = 0; e < 19; ++e) EXPECT_NEAR(sum[0].at(r, e), g.out, bound * 3) << "row " << r;
          if (std::isfinite(g.lse)) {
            EXPECT_NEAR(sum[1].at(r), g.lse, bound * (1 + std::abs(g.lse))) << "row " << r;
          } else {
            EXPECT_EQ(sum[1].at(r), g.lse);
          }
        }
      });
}

TYPED_TEST(Merge, EqualsTheDefinitionInEveryOrder) {
  const DType type = DTypeOf<TypeParam>::value, sums = accumulator_of(type);
  std::mt19937 rng(5);
  std::normal_distribution<double> normal;
  const auto draw_lse = [&] {
    switch (rng() % 5) {
      case 0:
        return -kInfinity;
      case 1:
        return rng() % 2 == 0 ? 1e4 : -1e4;
      default:
        return 4 * normal(rng);
    }
  };
  for (const Parts& shape : {Parts{2, 7, 3, 5}, Parts{1, 40, 2, 64}, Parts{3, 1, 1, 1}, Parts{2, 130, 4, 33}}) {
    SCOPED_TRACE(
        format("{} sequences of {}, {} heads of {}", shape.sequences, shape.q_len, shape.heads, shape.head_dim));
    std::vector<Partial> parts;
    for (int p = 0; p < 4; ++p) {
      parts.push_back({shape.outputs(type, 3), shape.lses(sums).fill(draw_lse)});
      parts.back().out.fill([&] { return normal(rng); });
      for (int64_t row = 0; row < shape.sequences * shape.q_len; ++row)
        for (int64_t c = 0; c < shape.heads * shape.head_dim; ++c)
          if (parts[p].lse.at(shape.row_of(row, c / shape.head_dim)) == -kInfinity)
            parts[p].out.set(row * shape.heads * shape.head_dim + c, 0);
    }
    std::vector<size_t> order{0, 1, 2, 3};
    do {
      std::vector<Partial> ordered;
      for (const size_t i : order) ordered.push_back(parts[i]);
      on_every_device(
          [&](TestExec& ex) {
            Partial sum = merged(ex, shape, ordered, sums);
            return std::vector<TestTensor>{sum.out, sum.lse};
          },
          [&](const std::vector<TestTensor>& sum) {
            for (int64_t row = 0; row < shape.sequences * shape.q_len; ++row)
              for (int64_t c = 0; c < shape.heads * shape.head_dim; ++c) {
                const int64_t at = shape.row_of(row, c / shape.head_dim);
                double top = -kInfinity, whole = 0, out = 0, scale = 0;
                for (const Partial& part : parts) top = std::max(top, part.lse.at(at));
                for (const Partial& part : parts) {
                  const double weight = top == -kInfinity ? 0 : std::exp(part.lse.at(at) - top);
                  whole += weight;
                  out += weight * part.out.at(row, c);
                  scale = std::max(scale, std::abs(part.out.at(row, c)));
                }
                if (whole == 0) {
                  ASSERT_EQ(sum[0].at(row, c), 0);
                  ASSERT_EQ(sum[1].at(at), -kInfinity);
                  continue;
                }
                // Four units in the last place, whatever the order; those of a log-sum-exp are errors of weights.
                const double lse = top + std::log(whole);
                const double close = (sums == DType::f64 ? 0x1p-50 : 0x1p-21) * std::max(1.0, std::abs(lse));
                ASSERT_NEAR(sum[0].at(row, c), out / whole, close * scale) << "row " << row << " column " << c;
                ASSERT_NEAR(sum[1].at(at), lse, close) << "row " << row;
              }
          });
    } while (std::next_permutation(order.begin(), order.end()) && order[0] == 0);
  }
}

TYPED_TEST(Merge, HasTheSameBitsOnEveryDevice) {
  if (on_cuda() && !emulated()) GTEST_SKIP() << "a GPU has its own exp and log";
  const DType type = DTypeOf<TypeParam>::value, sums = accumulator_of(type);
  for (const int64_t head_dim : {5, 64}) {
    const Parts shape{2, 9, 3, head_dim};
    Normal draw(2);
    std::vector<Partial> parts;
    for (int p = 0; p < 3; ++p)
      parts.push_back({shape.outputs(type, 0).fill(draw), shape.lses(sums).fill([&] { return 3 * draw(); })});
    device::CpuDevice plain(1, Isa::plain);
    Arena arena(plain, Arena::Mode::heap);
    Meter meter;
    TestExec reference{{plain, arena, meter}};
    const Partial expected = merged(reference, shape, parts, sums);
    for (const Isa isa : instruction_sets()) {
      Machine machine(2, isa);
      const Partial sum = merged(machine.ex, shape, parts, sums);
      EXPECT_EQ(sum.out.memory(), expected.out.memory()) << device::name_of(isa);
      EXPECT_EQ(sum.lse.memory(), expected.lse.memory()) << device::name_of(isa);
    }
  }
}

TYPED_TEST(Merge, NamesTheOperandThatDoesNotFit) {
  const DType type = DTypeOf<TypeParam>::value, sums = accumulator_of(type);
  const Parts shape{2, 3, 2, 4};
  std::vector<Partial> parts{{shape.outputs(type, 0), {{2, 6}, sums}}};  // not [sequence·head][query]
  Machine machine(1);
  try {
    merged(machine.ex, shape, parts, sums);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("merged attention lse"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace trainer::ops::testing
