#include "ops/rope.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "tensor/buffer.h"
#include "unit/ops/test_device.h"

using namespace trainer;
using trainer::ops::testing::DeviceTest;
using trainer::ops::testing::Machine;

namespace {

struct Rope : DeviceTest {};
template <typename T>
class RopeOf : public DeviceTest {};
using Types = ::testing::Types<double, float, bf16>;
TYPED_TEST_SUITE(RopeOf, Types);

template <typename T>
double unit_roundoff() {
  return std::is_same_v<T, bf16> ? 0x1p-8 : std::numeric_limits<AccumulatorOf<T>>::epsilon() / 2;
}

template <typename T>
std::vector<T> draw(size_t n, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<double> normal;
  std::vector<T> x(n);
  for (T& value : x) value = T(static_cast<AccumulatorOf<T>>(normal(rng)));
  return x;
}
template <typename T>
Tensor view(std::vector<T>& x, int64_t rows, int64_t cols) {
  return {reinterpret_cast<std::byte*>(x.data()), {rows, cols}, DTypeOf<T>::value};
}
template <typename T>
std::vector<AccumulatorOf<T>> table_of(int64_t positions, int64_t head_dim, double theta = 10000) {
  std::vector<AccumulatorOf<T>> table(static_cast<size_t>(positions * head_dim));
  ops::fill_rope_table(view(table, positions, head_dim), theta);
  return table;
}

TEST(RopeTable, IsAccurateToADoublesLastPlacesAtLargePositions) {
  for (const double theta : {1.0, 10000.0, 500000.0, 1e7}) {
    for (const int64_t head_dim : {2, 6, 64, 128}) {
      const int64_t positions = 5000, half = head_dim / 2;
      const std::vector<double> table = table_of<double>(positions, head_dim, theta);
      double worst = 0;
      for (int64_t p = 0; p < positions; p += 13) {
        for (int64_t i = 0; i < half; ++i) {
          const long double angle = static_cast<long double>(p) *
                                    powl(static_cast<long double>(theta),
                                         -2.0L * static_cast<long double>(i) / static_cast<long double>(head_dim));
          worst = std::max(worst, std::abs(table[p * head_dim + i] - static_cast<double>(cosl(angle))));
          worst = std::max(worst, std::abs(table[p * head_dim + half + i] - static_cast<double>(sinl(angle))));
        }
      }
      // The reference's own angle is known to 5000·2^-63.
      EXPECT_LE(worst, 2e-15) << "theta " << theta << ", head size " << head_dim;
    }
  }
}

using Scaling = ops::RopeScaling;

TEST(RopeTable, ScalesFrequenciesAsPublishedSettingsDo) {
  struct Setting {
    const char* name;
    int64_t head_dim;
    double theta;
    Scaling scaling;
    double magnitude;
    std::vector<std::pair<size_t, double>> frequencies;
  };
  const std::vector<Setting> settings = {
      {"linear 4", 8, 1e4, {.kind = Scaling::Kind::linear, .factor = 4}, 1, {{0, 0.25}, {1, 0.025}, {3, 0.00025}}},
      {"Llama 3.1 8B",
       128,
       5e5,
       {.kind = Scaling::Kind::llama3, .factor = 8, .original = 8192},
       1,
       {{1, 8.146172338565447e-01},
        {28, 3.211445994752591e-03},  // the last that is kept
        {29, 2.166570763503359e-03},
        {31, 8.567514129196324e-04},
        {34, 1.785078127679964e-04},
        {35, 9.556212353964683e-05},  // the first that is divided
        {63, 3.068925988914511e-07}}},
      {"Llama 3.2 1B",
       64,
       5e5,
       {.kind = Scaling::Kind::llama3, .factor = 32, .original = 8192},
       1,
       {{1, 6.636012376960885e-01},
        {14, 3.211445994752591e-03},
        {15, 1.290547928209264e-03},
        {16, 4.295567965593682e-04},
        {17, 9.708287802627670e-05},
        {18, 1.946163818483112e-05},
        {31, 9.418306725434911e-08}}},
      {"Qwen3, YaRN 4 of 32768",
       128,
       1e6,
       {.kind = Scaling::Kind::yarn, .factor = 4, .original = 32768},
       1.138629436111989,
       {{1, 8.058421877614819e-01},
        {23, 6.978305848598663e-03},
        {24, 5.375321490790102e-03},
        {31, 8.029597275452302e-04},
        {39, 6.490394320837029e-05},
        {40, 4.445698525097307e-05},
        {63, 3.102344401879299e-07}}},
      {"YaRN 8 of 8192",
       128,
       5e5,
       {.kind = Scaling::Kind::yarn, .factor = 8, .original = 8192},
       1.207944154167984,
       {{28, 1.558495850394640e-03}, {30, 8.148398229369278e-04}}},
  };
  for (const Setting& s : settings) {
    const std::vector<double> all = ops::rope_frequencies(s.head_dim, s.theta, s.scaling);
    ASSERT_EQ(all.size(), static_cast<size_t>(s.head_dim / 2));
    for (const auto& [i, expected] : s.frequencies)
      EXPECT_NEAR(all[i] / expected, 1, 2e-15) << s.name << ", pair " << i;
    EXPECT_NEAR(ops::rope_magnitude(s.scaling), s.magnitude, 1e-15) << s.name;
  }
}

TEST(RopeTable, RampOfYarnMayEndBetweenPairs) {
  // gpt-oss: pairs 8.092779115512402 to 17.39802450158856.
  const Scaling scaling{.kind = Scaling::Kind::yarn, .factor = 32, .original = 4096, .truncate = false};
  const std::vector<double> plain = ops::rope_frequencies(64, 1.5e5, {}),
                            all = ops::rope_frequencies(64, 1.5e5, scaling);
  for (size_t i = 0; i < plain.size(); ++i) {
    const double ramp =
        std::clamp((static_cast<double>(i) - 8.092779115512402) / (17.39802450158856 - 8.092779115512402), 0.0, 1.0);
    EXPECT_NEAR(all[i] / (plain[i] * (1 - ramp) + plain[i] / 32 * ramp), 1, 1e-13) << i;
  }
  EXPECT_NEAR(ops::rope_magnitude(scaling), 1.346573590279973, 1e-15);
  EXPECT_EQ(ops::rope_magnitude({.kind = Scaling::Kind::yarn, .factor = 32, .original = 4096, .attention = 1.5}), 1.5);
}

TEST(RopeTable, TurnsByScaledFrequenciesAndCarriesTheMagnitude) {
  const Scaling scaling{.kind = Scaling::Kind::yarn, .factor = 4, .original = 32768};
  constexpr int64_t kPositions = 3000, kDim = 128;
  std::vector<double> table(kPositions * kDim);
  ops::fill_rope_table(view(table, kPositions, kDim), 1e6, scaling);
  const std::vector<double> all = ops::rope_frequencies(kDim, 1e6, scaling);
  for (int64_t p = 0; p < kPositions; p += 37)
    for (int64_t i = 0; i < kDim / 2; ++i) {
      const long double angle = static_cast<long double>(p) * static_cast<long double>(all[static_cast<size_t>(i)]);
      EXPECT_NEAR(table[p * kDim + i], 1.138629436111989 * static_cast<double>(cosl(angle)), 1e-12);
      EXPECT_NEAR(table[p * kDim + kDim / 2 + i], 1.138629436111989 * static_cast<double>(sinl(angle)), 1e-12);
    }
}

TEST(RopeTable, HasTheSameBitsOnEveryMachine) {
  // If these bits change, so do the results of existing checkpoints.
  const std::vector<double> table = table_of<double>(1024, 64);
  uint64_t hash = 1469598103934665603u;
  for (const double value : table) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    hash = (hash ^ bits) * 1099511628211u;
  }
  EXPECT_EQ(hash, 0xcfa32773910b3744u);
}

TYPED_TEST(RopeOf, MatchesTheDefinitionOnAColumnRange) {
  using T = TypeParam;
  using A = AccumulatorOf<T>;
  for (const auto isa : ops::testing::instruction_sets()) {
    for (const auto& [head_dim, rotary] : std::vector<std::pair<int64_t, int64_t>>{
             {2, 2}, {6, 6}, {16, 16}, {34, 34}, {64, 64}, {64, 16}, {9, 6}, {80, 20}}) {
      const int64_t sequence = 7, sequences = 30, rows = sequence * sequences, heads = 3, first = 4;  // several tasks
      const int64_t before = 5, pitch = before + heads * head_dim + 3, half = rotary / 2;
      Machine cpu(2, isa);
      std::vector<A> table = table_of<T>(first + sequence, rotary);
      std::vector<T> x = draw<T>(static_cast<size_t>(rows * pitch), 1);
      const std::vector<T> original = x;
      const Tensor range = view(x, rows, pitch).col_range(before, heads * head_dim);
      run(cpu.ex, ops::Rope{range, view(table, first + sequence, rotary), head_dim, sequence, first, false});
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < pitch; ++c) {
          const auto got = static_cast<double>(x[r * pitch + c]);
          if (c < before || c >= before + heads * head_dim) {
            ASSERT_EQ(got, static_cast<double>(original[r * pitch + c])) << "outside the range";
            continue;
          }
          const int64_t i = (c - before) % head_dim, low = i % half;
          if (i >= rotary) {
            ASSERT_EQ(got, static_cast<double>(original[r * pitch + c])) << "a feature that does not rotate";
            continue;
          }
          const T* head = &original[r * pitch + c - i];
          const long double angle = static_cast<long double>(first + r % sequence) *
                                    powl(10000.0L, -2.0L * static_cast<long double>(low) / rotary);
          const auto cosine = static_cast<double>(cosl(angle)), sine = static_cast<double>(sinl(angle));
          const auto a = static_cast<double>(head[low]), b = static_cast<double>(head[low + half]);
          const double expected = i < half ? a * cosine - b * sine : b * cosine + a * sine;
          ASSERT_NEAR(got, expected, 4 * unit_roundoff<T>() * std::hypot(a, b)) << "row " << r << " column " << c;
        }
      }
    }
  }
}

TYPED_TEST(RopeOf, KeepsNormsAndInvertsToRounding) {
  using T = TypeParam;
  const int64_t rows = 33, head_dim = 48, heads = 2;
  Machine cpu(2);
  std::vector<AccumulatorOf<T>> table = table_of<T>(rows, head_dim);
  std::vector<T> x = draw<T>(static_cast<size_t>(rows * heads * head_dim), 2);
  const std::vector<T> original = x;
  ops::Rope rope{view(x, rows, heads * head_dim), view(table, rows, head_dim), head_dim, rows, 0, false};
  run(cpu.ex, rope);
  const auto norm = [&](const std::vector<T>& v, int64_t r) {
    double sum = 0;
    for (int64_t c = 0; c < heads * head_dim; ++c) sum += std::pow(static_cast<double>(v[r * heads * head_dim + c]), 2);
    return std::sqrt(sum);
  };
  for (int64_t r = 0; r < rows; ++r)
    EXPECT_NEAR(norm(x, r), norm(original, r), 4 * unit_roundoff<T>() * norm(original, r));
  EXPECT_NE(0, std::memcmp(x.data(), original.data(), x.size() * sizeof(T)));
  rope.inverse = true;
  run(cpu.ex, rope);
  for (size_t i = 0; i < x.size(); ++i)
    ASSERT_NEAR(static_cast<double>(x[i]), static_cast<double>(original[i]), 24 * unit_roundoff<T>()) << i;
}

TEST_F(Rope, ScoresDependOnDistanceOnly) {
  SKIP_ON_CUDA("fp64");
  const int64_t positions = 200, head_dim = 32;
  Machine cpu(1);
  std::vector<double> table = table_of<double>(positions, head_dim);
  const std::vector<double> q = draw<double>(head_dim, 3), k = draw<double>(head_dim, 4);
  const auto score = [&](int64_t q_position, int64_t k_position) {
    std::vector<double> a = q, b = k;
    run(cpu.ex, ops::Rope{view(a, 1, head_dim), view(table, positions, head_dim), head_dim, 1, q_position, false});
    run(cpu.ex, ops::Rope{view(b, 1, head_dim), view(table, positions, head_dim), head_dim, 1, k_position, false});
    double sum = 0;
    for (int64_t i = 0; i < head_dim; ++i) sum += a[i] * b[i];
    return sum;
  };
  for (const int64_t shift : {1, 50, 150}) EXPECT_NEAR(score(20, 13), score(20 + shift, 13 + shift), 1e-13);
  EXPECT_GT(std::abs(score(20, 13) - score(20, 14)), 1e-3);
}

TYPED_TEST(RopeOf, DoesNotDependOnTheThreadCount) {
  using T = TypeParam;
  const int64_t rows = 700, head_dim = 10, heads = 5;
  std::vector<AccumulatorOf<T>> table = table_of<T>(rows, head_dim);
  std::vector<T> first;
  for (const int threads : {1, 2, 3, 5}) {
    Machine cpu(threads);
    std::vector<T> x = draw<T>(static_cast<size_t>(rows * heads * head_dim), 5);
    run(cpu.ex, ops::Rope{view(x, rows, heads * head_dim), view(table, rows, head_dim), head_dim, rows, 0, false});
    if (first.empty()) first = x;
    EXPECT_EQ(0, std::memcmp(first.data(), x.data(), x.size() * sizeof(T))) << threads << " threads";
  }
}

// Rows in any order, with their positions, are rotated as the same rows in their natural order.
TYPED_TEST(RopeOf, FollowsTheGivenPositions) {
  using T = TypeParam;
  const int64_t sequence = 19, rows = 5 * sequence, head_dim = 10, heads = 30, width = heads * head_dim;
  std::vector<int32_t> order(static_cast<size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(6));
  std::vector<AccumulatorOf<T>> table = table_of<T>(sequence, head_dim);
  for (const auto isa : ops::testing::instruction_sets()) {
    for (const bool inverse : {false, true}) {
      Machine machine(2, isa);
      std::vector<T> natural = draw<T>(static_cast<size_t>(rows * width), 7), stored;
      std::vector<int32_t> positions;
      for (const int32_t row : order) {
        positions.push_back(static_cast<int32_t>(row % sequence));
        stored.insert(stored.end(), natural.begin() + row * width, natural.begin() + (row + 1) * width);
      }
      ops::Rope op{view(natural, rows, width), view(table, sequence, head_dim), head_dim, sequence, 0, inverse};
      run(machine.ex, op);
      op.x = view(stored, rows, width);
      op.position_ids = {reinterpret_cast<std::byte*>(positions.data()), {rows}, DType::i32};
      run(machine.ex, op);
      for (size_t r = 0; r < order.size(); ++r)
        ASSERT_EQ(0,
                  std::memcmp(&stored[r * static_cast<size_t>(width)], &natural[static_cast<size_t>(order[r] * width)],
                              static_cast<size_t>(width) * sizeof(T)))
            << "row " << r;
    }
  }
}

TEST(RopeChecks, RejectGivenPositionsOutsideTheTable) {
  device::CpuDevice device(1);
  Arena arena(device, Arena::Mode::heap);
  Meter meter;
  Exec ex{device, arena, meter};
  std::vector<float> table = table_of<float>(8, 4), x(2 * 4);
  for (const int32_t bad : {-1, 8}) {
    int32_t positions[] = {0, bad};
    ops::Rope op{view(x, 2, 4), view(table, 8, 4), 4, 2, 0, false};
    op.position_ids = {reinterpret_cast<std::byte*>(positions), {2}, DType::i32};
    EXPECT_THROW(ops::run(ex, op), Error);
    positions[1] = 7;
    EXPECT_NO_THROW(ops::run(ex, op));
  }
}

TEST_F(Rope, RejectsPositionsBeyondItsTable) {
  Machine cpu(1);
  std::vector<float> table = table_of<float>(8, 4), x(12 * 4);
  EXPECT_THROW(run(cpu.ex, ops::Rope{view(x, 12, 4), view(table, 8, 4), 4, 12, 0, false}), Error);
  EXPECT_THROW(run(cpu.ex, ops::Rope{view(x, 4, 4), view(table, 8, 4), 4, 4, 5, false}), Error);
  EXPECT_NO_THROW(run(cpu.ex, ops::Rope{view(x, 12, 4), view(table, 8, 4), 4, 4, 4, false}));
}

}  // namespace
