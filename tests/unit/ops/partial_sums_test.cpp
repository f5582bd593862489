// Partial sums that operators on a GPU leave behind, and the sums of dx's columns that the backward pass of a norm
// makes on its way. On a CPU sums are complete at once, and a norm leaves none of dx.
#include "ops/norm.h"
#include "ops/reduce.h"
#include "ops/split_norm.h"
#include "tensor/buffer.h"
#include "tensor/host_copy.h"
#include "unit/ops/op_fixture.h"

namespace trainer::ops::testing {
namespace {

/// A tensor of the device, filled from a grid without gaps.
Buffer put(device::Device& device, const Grid& from) {
  Buffer there(device, "test", from.tensor().shape, from.tensor().dtype);
  HostCopy here(device, there);
  std::memcpy(here.tensor().data, from.tensor().data, static_cast<size_t>(from.tensor().bytes()));
  here.put();
  return there;
}
Grid get(device::Device& device, const Tensor& from) {
  Grid grid(from.shape, from.dtype);
  const HostCopy here(device, from);
  std::memcpy(grid.tensor().data, here.tensor().data, static_cast<size_t>(from.bytes()));
  return grid;
}

struct Case {
  int64_t rows, cols;
  bool center, bias, residual;
};
std::vector<Case> cases() {
  return {{1, 1, false, true, false},     {3, 7, true, true, true},       {37, 33, true, false, true},
          {131, 19, false, false, false}, {35, 768, true, true, true},    {37, 1600, true, true, true},
          {34, 2048, false, true, false}, {18, 4104, true, true, true},   {3, 8200, false, true, true},
          {3, 8203, true, true, true},    {17, 17000, true, false, true}, {300, 40, true, true, true}};
}

template <typename T>
struct PartialSumsOf : DeviceTest {
  static constexpr DType kType = DTypeOf<T>::value, kSums = accumulator_of(kType);
};
TYPED_TEST_SUITE(PartialSumsOf, ComputeTypes);

/// The backward pass of one norm and what it reads; as a whole norm, or as the only rank of one that is split.
template <typename Fixture>
struct Rig {
  Rig(device::Device& device, const Case& of) : c(of) {
    Normal draw(51), near(52, 1, 0.25);
    const Shape matrix{c.rows, c.cols}, row{c.cols}, column{c.rows};
    for (Grid* grid : {&x, &dy, &residual}) *grid = Grid(matrix, Fixture::kType).fill(draw);
    gain = Grid(row, Fixture::kType).fill(near);
    mean = Grid(column, Fixture::kSums).fill(draw);
    rstd = Grid(column, Fixture::kSums).fill(near);
    sums = Grid({norm_planes(c.center), c.rows}, Fixture::kSums).fill(draw);
    before = Grid(row, Fixture::kSums).fill(draw);
    for (const Grid* grid : {&x, &dy, &residual, &gain, &mean, &rstd, &sums}) there.push_back(put(device, *grid));
    dx = Buffer(device, "test", matrix, Fixture::kType);
    dgain = put(device, before);
    dbias = put(device, before);
  }
  void run(Exec& ex, bool split, bool accumulate, PartialSums* later, Scratch* dx_sums) {
    const auto t = [&](size_t i) { return there[i].tensor(); };
    const Tensor with = c.residual ? t(2) : Tensor{}, m = c.center ? t(4) : Tensor{}, db = c.bias ? dbias : Tensor{};
    if (split) {
      ops::run(ex, SplitNormBackward{t(1), t(0), t(3), m, t(5), t(6), with, dx, dgain, db, c.cols, c.center, accumulate,
                                     accumulate, later, dx_sums});
    } else {
      ops::run(ex, NormBackward{t(1), t(0), t(3), m, t(5), with, dx, dgain, db, c.center, accumulate, accumulate, later,
                                dx_sums});
    }
  }
  Case c;
  Grid x, dy, residual, gain, mean, rstd, sums, before;
  std::vector<Buffer> there;  // of the grids but the last
  Buffer dx, dgain, dbias;
};

TYPED_TEST(PartialSumsOf, ManyOperatorsHaveTheBitsThatEachHasAlone) {
  Machine machine(2);
  device::Device& device = *machine.device;
  Exec& ex = machine.ex;
  for (const bool accumulate : {false, true}) {
    PartialSums later;
    std::vector<Rig<TestFixture>> alone, together;
    std::vector<Buffer> alone_columns, together_columns;
    for (const Case& c : cases())  // more sums than one launch has
      for (const bool split : {false, true}) {
        if (c.cols > 1600) continue;
        Rig<TestFixture>&a = alone.emplace_back(device, c), &b = together.emplace_back(device, c);
        a.run(ex, split, accumulate, nullptr, nullptr);
        b.run(ex, split, accumulate, &later, nullptr);
        for (const auto& [rig, columns, queue] :
             {std::tuple{&a, &alone_columns, static_cast<PartialSums*>(nullptr)}, {&b, &together_columns, &later}}) {
          columns->push_back(put(device, rig->before));
          ops::run(ex, ColumnSum{rig->there[1], columns->back(), accumulate, queue});
        }
      }
    if (on_cuda()) {
      EXPECT_GT(later.waiting().size(), 30u);
      EXPECT_TRUE(get(device, together.front().dgain).memory() == together.front().before.memory());
    } else {
      EXPECT_TRUE(later.waiting().empty());
    }
    later.finish(ex);
    EXPECT_TRUE(later.waiting().empty());
    for (size_t i = 0; i < alone.size(); ++i) {
      SCOPED_TRACE(format("[{}, {}], accumulate {}", alone[i].c.rows, alone[i].c.cols, accumulate));
      EXPECT_TRUE(get(device, alone[i].dgain).memory() == get(device, together[i].dgain).memory());
      EXPECT_TRUE(get(device, alone[i].dbias).memory() == get(device, together[i].dbias).memory());
      EXPECT_TRUE(get(device, alone_columns[i]).memory() == get(device, together_columns[i]).memory());
    }
  }
}

TYPED_TEST(PartialSumsOf, NormsSumTheColumnsOfDxOnTheirWay) {
  using T = TypeParam;
  Machine machine(2);
  device::Device& device = *machine.device;
  for (const Case& c : cases())
    for (const bool split : {false, true}) {
      SCOPED_TRACE(format("[{}, {}] center {} residual {} split {}", c.rows, c.cols, c.center, c.residual, split));
      Rig<TestFixture> rig(device, c);
      Scratch dx_sums;
      rig.run(machine.ex, split, true, nullptr, &dx_sums);
      if (!on_cuda()) {
        EXPECT_FALSE(dx_sums);
        continue;
      }
      ASSERT_TRUE(dx_sums);
      const Grid before = rig.before;
      const Buffer db = put(device, before);
      PartialSums later;
      later.add(std::move(dx_sums), {{db, true}});
      later.finish(machine.ex);
      const Grid sums = get(device, db), dx = get(device, rig.dx);
      // An element of dx takes fewer than 64 roundings, those of its row's sums among them (a thread adds at most 34
      // pieces); its column adds one for each row. The stored dx is rounded once more.
      std::vector<long double> want(static_cast<size_t>(c.cols)), size(want), stored(want), rounding(want);
      const auto n = static_cast<long double>(c.cols), eps = static_cast<long double>(kEps<float>);
      for (int64_t r = 0; r < c.rows; ++r) {
        const long double s = rig.rstd.at(r), m = c.center ? rig.mean.at(r) : 0;
        const auto g = [&](int64_t k) { return static_cast<long double>(rig.dy.at(r, k)) * rig.gain.at(k); };
        const auto hat = [&](int64_t k) { return (rig.x.at(r, k) - m) * s; };
        long double sum = 0, product = 0, sizes = 0;
        for (int64_t k = 0; k < c.cols && !split; ++k) {
          sum += c.center ? g(k) : 0;
          product += g(k) * hat(k);
          sizes += std::abs(g(k)) * (1 + std::abs(hat(k)));
        }
        if (split) {
          sum = c.center ? rig.sums.at(0, r) : 0;
          product = rig.sums.at(c.center ? 1 : 0, r);
          sizes = std::abs(sum) + std::abs(product);
        }
        for (int64_t k = 0; k < c.cols; ++k) {
          const auto i = static_cast<size_t>(k);
          const long double old = c.residual ? rig.residual.at(r, k) : 0;
          const long double value = old + s * (g(k) - sum / n - hat(k) * product / n);
          const long double terms = std::abs(old) + s * (std::abs(g(k)) + (1 + std::abs(hat(k))) * sizes / n);
          EXPECT_LE(std::abs(dx.at(r, k) - value), 64 * eps * terms + kEps<T> * std::abs(value)) << r << ", " << k;
          want[i] += value;
          size[i] += terms;
          stored[i] += dx.at(r, k);
          rounding[i] += kEps<T> * std::abs(dx.at(r, k));
        }
      }
      for (int64_t k = 0; k < c.cols; ++k) {
        const auto i = static_cast<size_t>(k);
        const long double bound = eps * static_cast<long double>(64 + c.rows) * (size[i] + std::abs(before.at(k)));
        EXPECT_LE(std::abs(sums.at(k) - before.at(k) - want[i]), bound) << "column " << k;
        EXPECT_LE(std::abs(sums.at(k) - before.at(k) - stored[i]), bound + rounding[i]) << "column " << k;
      }
    }
}

TEST(PartialSumsChecks, RefuseASumThatIsWrittenTwice) {
  if (!on_cuda() || device::cuda::devices().empty()) GTEST_SKIP() << "a GPU alone leaves partial sums";
  Machine machine(1);
  const Buffer x(*machine.device, "test", {64, 8}, DType::f32), sums(*machine.device, "test", {8}, DType::f32);
  PartialSums later;
  ops::run(machine.ex, ColumnSum{x, sums, false, &later});
  EXPECT_THROW(ops::run(machine.ex, ColumnSum{x, sums, true, &later}), Error);
}

TEST(PartialSumsChecks, ADryDeviceHoldsThemAsARealOneDoes) {
  if (!on_cuda() || device::cuda::devices().empty()) GTEST_SKIP() << "a GPU alone leaves partial sums";
  device::DryDevice device(device::cuda::devices().front(), 1);
  Arena arena(device, Arena::Mode::heap);
  Meter meter;
  Exec ex{device, arena, meter};
  const Tensor x{nullptr, {640, 64}, DType::f32, 0}, row{nullptr, {64}, DType::f32, 0};
  PartialSums later;
  ops::run(ex, ColumnSum{x, row, false, &later});
  ops::run(ex, ColumnSum{x, row, false, &later});
  EXPECT_EQ(later.waiting().size(), 2u);
  later.finish(ex);
  EXPECT_TRUE(later.waiting().empty());
  EXPECT_EQ(meter.of(OpKind::column_sum).calls, 3);
}

}  // namespace
}  // namespace trainer::ops::testing
