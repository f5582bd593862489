#include "ops/embedding.h"

#include <map>
#include <numeric>

#include "unit/ops/op_fixture.h"

namespace trainer::ops::testing {
namespace {

template <typename T>
struct Embedding : DeviceTest {
  static constexpr DType kType = DTypeOf<T>::value, kSums = accumulator_of(kType);
};
TYPED_TEST_SUITE(Embedding, ComputeTypes);

struct Case {
  int64_t sequences, length, vocab, cols, positions;  // positions 0: none
};
std::vector<Case> cases() {
  return {{1, 1, 1, 1, 0}, {3, 5, 7, 33, 8}, {4, 50, 300, 16, 50}, {2, 9, 40, 517, 0}, {2, 400, 5, 6, 0}};
}

TestTensor some_ids(const Case& c) {
  std::mt19937_64 engine(51);  // low ids are frequent, some never occur
  TestTensor ids({c.sequences * c.length}, DType::i32);
  ids.fill([&] {
    const double u = std::uniform_real_distribution<double>(0, 1)(engine);
    return std::floor(u * u * u * static_cast<double>(c.vocab));
  });
  return ids;
}

TestTensor order_of(const TestTensor& ids, int64_t vocab) {
  TestTensor order({ids.count()}, DType::i32);
  RowsByToken by_token;
  by_token.sort({ids.tensor().as<int32_t>(), static_cast<size_t>(ids.count())}, vocab);
  order.fill([&, i = size_t{0}]() mutable { return by_token.rows[i++]; });
  return order;
}

TEST(RowsByToken, KeepsTheOrderOfRowsAndPutsOtherIdsLast) {
  RowsByToken order;
  order.sort(std::vector<int32_t>{4, 0, 5, 4, -1, 0, 3}, 5);
  EXPECT_EQ(order.rows, (std::vector<int32_t>{1, 5, 6, 0, 3, 2, 4}));
  order.sort(std::vector<int32_t>{2, 1}, 3);
  EXPECT_EQ(order.rows, (std::vector<int32_t>{1, 0}));
}

TYPED_TEST(Embedding, ForwardAddsTokenAndPosition) {
  using T = TypeParam;
  for (const Case& c : cases()) {
    Normal draw(52);
    TestTensor ids = some_ids(c), table = TestTensor({c.vocab, c.cols}, this->kType).fill(draw);
    const int64_t first = c.positions > c.length ? c.positions - c.length : 0;
    TestTensor positions = c.positions > 0 ? TestTensor({c.positions, c.cols}, this->kType).fill(draw) : TestTensor();
    on_every_device(
        [&](TestExec& ex) {
          TestTensor y({c.sequences * c.length, c.cols}, this->kType);
          run(ex, EmbeddingForward{ids, table, positions, y, c.length, first});
          return std::vector<TestTensor>{y};
        },
        [&](const std::vector<TestTensor>& out) {
          for (int64_t r = 0; r < ids.count(); ++r)
            for (int64_t i = 0; i < c.cols; ++i) {
              const double offset = c.positions > 0 ? positions.at(first + r % c.length, i) : 0;
              const double token = table.at(static_cast<int64_t>(ids.at(r)), i);
              expect_close<T>(out[0].at(r, i), token + offset, 1, std::abs(token) + std::abs(offset), "y");
            }
        });
  }
}

/// Adds a token's rows in order; on a GPU the sum of each full block of 64 rows is formed first.
template <typename A>
A add_in_order(A sum, const std::vector<A>& rows) {
  const size_t block = on_cuda() ? 64 : rows.size() + 1;
  size_t at = 0;
  for (; at + block <= rows.size(); at += block) {
    A part = 0;
    for (size_t i = at; i < at + block; ++i) part += rows[i];
    sum += part;
  }
  for (; at < rows.size(); ++at) sum += rows[at];
  return sum;
}

TYPED_TEST(Embedding, BackwardSumsTheRowsOfEachTokenInOrder) {
  using T = TypeParam;
  using A = AccumulatorOf<T>;
  for (const Case& c : cases()) {
    Normal draw(53);
    TestTensor ids = some_ids(c), order = order_of(ids, c.vocab);
    TestTensor dy = TestTensor({ids.count(), c.cols}, this->kType, 3).fill(draw);
    const TestTensor table_before = TestTensor({c.vocab + 2, c.cols}, this->kSums).fill(draw);  // two rows of padding
    const TestTensor positions_before = TestTensor({std::max<int64_t>(1, c.positions), c.cols}, this->kSums).fill(draw);
    for (const bool accumulate : {false, true}) {
      SCOPED_TRACE(format("vocabulary {}, {} columns, accumulate {}", c.vocab, c.cols, accumulate));
      on_every_device(
          [&](TestExec& ex) {
            TestTensor dtable = table_before, dpositions = c.positions > 0 ? positions_before : TestTensor();
            run(ex, EmbeddingBackward{ids, order, dy, dtable, accumulate});
            if (c.positions > 0) run(ex, PositionsBackward{dy, dpositions, c.length, 0, accumulate});
            return std::vector<TestTensor>{dtable, dpositions};
          },
          [&](const std::vector<TestTensor>& out) {
            // The same additions in the same order: equal, not just close.
            auto expect_sums = [&](const TestTensor& got, const TestTensor& before, auto row_of, bool blocks) {
              for (int64_t v = 0; v < got.tensor().rows(); ++v)
                for (int64_t i = 0; i < c.cols; ++i) {
                  A sum = accumulate ? static_cast<A>(before.at(v, i)) : A(0);
                  std::vector<A> rows;
                  for (int64_t r = 0; r < ids.count(); ++r)
                    if (row_of(r) == v) rows.push_back(static_cast<A>(dy.at(r, i)));
                  sum = blocks ? add_in_order(sum, rows) : std::accumulate(rows.begin(), rows.end(), sum);
                  EXPECT_EQ(got.at(v, i), static_cast<double>(sum)) << "row " << v << " column " << i;
                }
            };
            expect_sums(
                out[0], table_before, [&](int64_t r) { return static_cast<int64_t>(ids.at(r)); }, true);
            if (c.positions > 0)
              expect_sums(
                  out[1], positions_before, [&](int64_t r) { return r % c.length; }, false);
          });
    }
  }
}

// More tokens than one block of threads, some with several blocks of rows, and tokens of other shards on both sides.
TYPED_TEST(Embedding, BackwardSumsManyRowsOfALargeShard) {
  using T = TypeParam;
  using A = AccumulatorOf<T>;
  const int64_t n = 5000, vocab = 7000, first = 1000, rows = 5500, cols = 8;
  std::mt19937_64 engine(54);
  Normal draw(55);
  TestTensor ids({n}, DType::i32), dy = TestTensor({n, cols}, this->kType).fill(draw);
  ids.fill([&] { return static_cast<double>(engine() % 3 == 0 ? engine() % vocab : 1000 + engine() % 40); });
  TestTensor order = order_of(ids, vocab);
  std::map<int64_t, std::vector<A>> added;  // by element of the table
  for (int64_t r = 0; r < n; ++r) {
    const int64_t row = static_cast<int64_t>(ids.at(r)) - first;
    for (int64_t i = 0; i < cols && row >= 0 && row < rows; ++i)
      added[row * cols + i].push_back(static_cast<A>(dy.at(r, i)));
  }
  EXPECT_GT(added[0].size(), 64u) << "more than a block";
  std::vector<A> want(static_cast<size_t>(rows * cols), A(0));
  for (const auto& [at, values] : added) want[static_cast<size_t>(at)] = add_in_order(A(0), values);
  on_every_device(
      [&](TestExec& ex) {
        TestTensor dtable({rows, cols}, this->kSums);
        run(ex, EmbeddingBackward{ids, order, dy, dtable, false, {first, vocab}});
        return std::vector<TestTensor>{dtable};
      },
      [&](const std::vector<TestTensor>& out) {
        int64_t differ = 0;
        for (int64_t i = 0; i < rows * cols; ++i)
          differ += out[0].at(i) != static_cast<double>(want[static_cast<size_t>(i)]);
        EXPECT_EQ(differ, 0);
      });
}

TYPED_TEST(Embedding, ShardsAddUpToTheWholeTable) {
  const int64_t n = 26, vocab = 40, cut = 17, cols = 24, length = 9;
  std::mt19937_64 engine(56);
  Normal draw(57);
  TestTensor ids({n}, DType::i32), table = TestTensor({vocab, cols}, this->kType).fill(draw);
  TestTensor positions = TestTensor({length + 2, cols}, this->kType).fill(draw);
  ids.fill([&] { return static_cast<double>(engine() % vocab); });
  on_every_device(
      [&](TestExec& ex) {
        TestTensor whole({n, cols}, this->kType), low = whole, high = whole;
        run(ex, EmbeddingForward{ids, table, positions, whole, length, 2});
        run(ex, EmbeddingForward{ids, table.tensor().row_range(0, cut), {}, low, 0, 0, {0, vocab}});
        run(ex, EmbeddingForward{ids, table.tensor().row_range(cut, vocab - cut), {}, high, 0, 0, {cut, vocab}});
        for (int64_t i = 0; i < low.count(); ++i) {
          EXPECT_TRUE(low.at(i) == 0 || high.at(i) == 0);
          low.set(i, low.at(i) + high.at(i));
        }
        // The same batch in two parts, as on ranks that hold its first 13 rows and the other ones.
        const Tensor first_rows = low.tensor().row_range(0, 13), others = low.tensor().row_range(13, n - 13);
        run(ex, AddPositions{positions, first_rows, length, 2, 0});
        run(ex, AddPositions{positions, others, length, 2, 13});
        EXPECT_TRUE(low.memory() == whole.memory());
        return std::vector<TestTensor>{whole};
      },
      [](const std::vector<TestTensor>&) {});
}

// Rows in any order, with their positions: both forms of the sum, and the gradient, are those of the natural order.
TYPED_TEST(Embedding, FollowsTheGivenPositions) {
  const int64_t sequences = 5, length = 23, n = sequences * length, vocab = 40, cols = 24, cut = 50;
  std::mt19937_64 engine(58);
  Normal draw(59);
  TestTensor ids({n}, DType::i32), stored_ids = ids, position_ids = ids;
  TestTensor table = TestTensor({vocab, cols}, this->kType).fill(draw);
  TestTensor positions = TestTensor({length + 1, cols}, this->kType).fill(draw);
  TestTensor dy = TestTensor({n, cols}, this->kType).fill(draw), stored_dy = dy;
  ids.fill([&] { return static_cast<double>(engine() % vocab); });
  // Sequences are interleaved and their halves exchanged, so rows of a position stay in the order of their sequences.
  std::vector<int64_t> order;
  for (int64_t r = 0; r < n; ++r) order.push_back(r % sequences * length + (r / sequences + length / 2) % length);
  for (int64_t r = 0; r < n; ++r) {
    const int64_t row = order[static_cast<size_t>(r)];
    stored_ids.set(r, ids.at(row));
    position_ids.set(r, static_cast<double>(row % length));
    for (int64_t i = 0; i < cols; ++i) stored_dy.set(r * cols + i, dy.at(row, i));
  }
  TestTensor sorted = order_of(position_ids, length + 1);
  on_every_device(
      [&](TestExec& ex) {
        TestTensor natural({n, cols}, this->kType), stored = natural, apart = natural;
        run(ex, EmbeddingForward{ids, table, positions, natural, length, 0});
        run(ex, EmbeddingForward{stored_ids, table, positions, stored, 0, 0, {}, position_ids});
        run(ex, EmbeddingForward{stored_ids, table, {}, apart, 0, 0});
        const auto add = [&](int64_t first, int64_t rows) {
          run(ex, AddPositions{positions, apart.tensor().row_range(first, rows), 0, 0, 0,
                               position_ids.tensor().range(first, rows)});
        };
        add(0, cut);
        add(cut, n - cut);
        EXPECT_TRUE(apart.memory() == stored.memory());
        for (int64_t i = 0; i < n * cols; ++i)
          EXPECT_EQ(stored.at(i), natural.at(order[static_cast<size_t>(i / cols)], i % cols));
        TestTensor gradient({length + 1, cols}, this->kSums), stored_gradient = gradient;
        run(ex, PositionsBackward{dy, gradient, length});
        run(ex, EmbeddingBackward{position_ids, sorted, stored_dy, stored_gradient});
        EXPECT_TRUE(stored_gradient.memory() == gradient.memory());
        return std::vector<TestTensor>{stored, stored_gradient};
      },
      [](const std::vector<TestTensor>&) {});
}

TEST(EmbeddingChecks, RejectATokenOutsideTheTable) {
  device::CpuDevice device(1);
  Arena arena(device, Arena::Mode::heap);
  Meter meter;
  Exec ex{device, arena, meter};
  TestTensor ids({2}, DType::i32), table({3, 4}, DType::f32), y({2, 4}, DType::f32);
  for (const int bad : {-1, 3}) {
    ids.set(0, 0);
    ids.set(1, bad);
    EXPECT_THROW(run(ex, EmbeddingForward{ids, table, {}, y, 0, 0}), Error);
  }
}

}  // namespace
}  // namespace trainer::ops::testing
