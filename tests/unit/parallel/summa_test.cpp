// The products of SUMMA beside dense ones.
#include "parallel/summa.h"

#include <atomic>

#include "property/seams_rig.h"
#include "unit/parallel/pieces_rig.h"

namespace trainer::pieces {
namespace {

using parallel::Panels;
using parallel::Sums;
using seams::Matrix;
using seams::transpose;

mesh::MeshShape square_of(int q) { return mesh::MeshShape({{"row", q}, {"col", q}}); }

/// A rank of a square.
struct Rank {
  Rank(comm::World& world, int q, DType dtype = DType::f64, bool overlaps = true)
      : type(dtype), overlap(overlaps), mesh(world, device, square_of(q)) {}
  comm::Communicator& row_line() { return mesh.along("col", comm::Lane::critical); }
  comm::Communicator& col_line() { return mesh.along("row", comm::Lane::critical); }
  Panels along_row(const Tensor& own) { return {ex, row_line(), own, "panel", overlap}; }
  Panels along_col(const Tensor& own) { return {ex, col_line(), own, "panel", overlap}; }
  Sums into_row(const Tensor& own) { return {row_line(), own, "part", overlap}; }
  Sums into_col(const Tensor& own) { return {col_line(), own, "part", overlap}; }
  int64_t first(const char* axis, int64_t extent) { return mesh.index(axis) * (extent / mesh.size(axis)); }
  /// This rank's block of a matrix.
  Scratch block(const Matrix& whole, DType dtype) {
    const int64_t q = mesh.size("row"), m = whole.rows / q, n = whole.cols / q;
    Scratch t = ex.take("block", {m, n}, dtype);
    for (int64_t r = 0; r < m; ++r)
      for (int64_t c = 0; c < n; ++c) {
        const double value = whole(first("row", whole.rows) + r, first("col", whole.cols) + c);
        if (dtype == DType::bf16) {
          t.tensor().as<bf16>()[r * n + c] = bf16(static_cast<float>(value));
        } else {
          set(t, r * n + c, value);
        }
      }
    return t;
  }
  Scratch block(const Matrix& whole) { return block(whole, type); }
  Scratch result(int64_t rows, int64_t cols, DType dtype) {
    const int64_t q = mesh.size("row");
    return ex.take("result", {rows / q, cols / q}, dtype);
  }
  Scratch result(int64_t rows, int64_t cols) { return result(rows, cols, accumulator_of(type)); }
  /// Largest difference from the block of a matrix, relative to its largest element.
  double error(const Tensor& t, const Matrix& whole) {
    const Scratch expected = block(whole, t.dtype);
    double largest = 0;
    for (const double value : whole.values) largest = std::max(largest, std::abs(value));
    double worst = 0;
    for (int64_t i = 0; i < t.count(); ++i) worst = std::max(worst, std::abs(get(t, i) - get(expected, i)));
    return worst / largest;
  }
  const DType type;
  const bool overlap;
  device::CpuDevice device{1};
  mesh::Mesh mesh;
  Arena arena{device, Arena::Mode::heap};
  Meter meter;
  Exec ex{device, arena, meter};
};

template <typename F>
void on_squares(std::initializer_list<int> sides, DType type, F&& body) {
  for (const int q : sides)
    comm::run_on_threads(q * q, {.timeout_s = 60}, [&](comm::World& world) {
      SCOPED_TRACE(format("q = {}, rank {}, {}", q, world.rank(), name_of(type)));
      Rank rank(world, q, type);
      body(rank, q);
    });
}

Matrix drawn(const std::string& name, int64_t rows, int64_t cols, int range) {
  Matrix m(rows, cols);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const uint32_t bits = philox_at(philox_key(17, name), static_cast<uint64_t>(i));
    m.values[static_cast<size_t>(i)] = range > 0
                                           ? static_cast<double>(bits % static_cast<uint32_t>(2 * range + 1)) - range
                                           : static_cast<double>(bits) * 0x1p-31 - 1;
  }
  return m;
}

void ab(Rank& rank, const Tensor& a, const Tensor& b, const Tensor& c) {
  parallel::summa_ab(rank.ex, rank.along_row(a), rank.along_col(b), c);
}
void abt(Rank& rank, const Tensor& a, const Tensor& b, const Tensor& c) {
  Sums sums = rank.into_row(c);
  parallel::summa_abt(rank.ex, a, rank.along_col(b), sums);
  sums.finish(rank.ex);
}
void atb(Rank& rank, const Tensor& a, const Tensor& b, const Tensor& c, bool accumulate = false) {
  Sums sums = rank.into_col(c);
  parallel::summa_atb(rank.ex, rank.along_row(a), b, sums, accumulate);
  sums.finish(rank.ex);
}

TEST(Summa, EqualsTheDenseProductBitForBitOnIntegers) {
  struct Sizes {
    int64_t m, k, n;
  };
  for (const Sizes& s : {Sizes{24, 4080, 36}, {36, 12, 48}, {12, 24, 12}}) {
    const Matrix a = drawn("a", s.m, s.k, 8), b = drawn("b", s.k, s.n, 8), c = a * b;
    for (const DType type : {DType::f64, DType::f32})
      on_squares({1, 2, 3, 4}, type, [&](Rank& rank, int) {
        const Scratch y = rank.result(s.m, s.n);
        ab(rank, rank.block(a), rank.block(b), y);
        EXPECT_EQ(rank.error(y, c), 0);
        abt(rank, rank.block(a), rank.block(transpose(b)), y);
        EXPECT_EQ(rank.error(y, c), 0);
        atb(rank, rank.block(transpose(a)), rank.block(b), y);
        EXPECT_EQ(rank.error(y, c), 0);
        atb(rank, rank.block(transpose(a)), rank.block(b), y, /*accumulate=*/true);
        EXPECT_EQ(rank.error(y, c + c), 0);
      });
  }
}

TEST(Summa, IsCloseToTheDenseProduct) {
  const int64_t m = 24, k = 132, n = 36;
  const Matrix a = drawn("a", m, k, 0), b = drawn("b", k, n, 0), c = a * b;
  for (const auto& [type, tolerance] : {std::pair{DType::f64, 1e-13}, {DType::f32, 1e-5}})
    on_squares({1, 2, 3, 4}, type, [&, bound = tolerance](Rank& rank, int) {
      const Scratch y = rank.result(m, n);
      ab(rank, rank.block(a), rank.block(b), y);
      EXPECT_LE(rank.error(y, c), bound);
      abt(rank, rank.block(a), rank.block(transpose(b)), y);
      EXPECT_LE(rank.error(y, c), bound);
      atb(rank, rank.block(transpose(a)), rank.block(b), y);
      EXPECT_LE(rank.error(y, c), bound);
    });
}

TEST(Summa, IsClosedUnderDifferentiation) {
  // Of L = Σ G ∘ C, by the definition of the derivative: dL/dA[i, j] = Σ_rc G[r, c] · dC[r, c]/dA[i, j].
  const int64_t m = 12, k = 24, n = 36;
  const Matrix g = drawn("g", m, n, 0);
  on_squares({2, 3}, DType::f64, [&](Rank& rank, int) {
    const Scratch dc = rank.block(g);
    const auto near = [&](const Tensor& found, const Matrix& expected) {
      EXPECT_LE(rank.error(found, expected), 1e-12);
    };
    {  // C = A·B
      const Matrix a = drawn("a", m, k, 0), b = drawn("b", k, n, 0);
      const Scratch da = rank.result(m, k), db = rank.result(k, n);
      abt(rank, dc, rank.block(b), da);
      atb(rank, rank.block(a), dc, db);
      near(da, g * transpose(b));
      near(db, transpose(a) * g);
    }
    {  // C = A·Bᵀ
      const Matrix a = drawn("a", m, k, 0), b = drawn("b", n, k, 0);
      const Scratch da = rank.result(m, k), db = rank.result(n, k);
      ab(rank, dc, rank.block(b), da);
      atb(rank, dc, rank.block(a), db);
      near(da, g * b);
      near(db, transpose(g) * a);
      // Both from one broadcast of dC.
      const Scratch together_a = rank.result(m, k), together_b = rank.result(n, k);
      Sums sums = rank.into_col(together_b);
      const Scratch own_b = rank.block(b), own_a = rank.block(a);
      parallel::summa_ab_atb(rank.ex, rank.along_row(dc), rank.along_col(own_b), together_a, own_a, sums);
      sums.finish(rank.ex);
      for (int64_t i = 0; i < da.tensor().count(); ++i) EXPECT_EQ(get(together_a, i), get(da, i));
      for (int64_t i = 0; i < db.tensor().count(); ++i) EXPECT_EQ(get(together_b, i), get(db, i));
    }
    {  // C = Aᵀ·B
      const Matrix a = drawn("a", k, m, 0), b = drawn("b", k, n, 0);
      const Scratch da = rank.result(k, m), db = rank.result(k, n);
      abt(rank, rank.block(b), dc, da);
      ab(rank, rank.block(a), dc, db);
      near(da, b * transpose(g));
      near(db, a * g);
    }
  });
}

TEST(Summa, DerivativesAreThoseOfFiniteDifferences) {
  const int64_t m = 4, k = 8, n = 12;
  const Matrix a = drawn("a", m, k, 0), b = drawn("b", k, n, 0), g = drawn("g", m, n, 0);
  constexpr double kStep = 1e-3;
  const auto loss = [&](const Matrix& left) {
    const Matrix c = left * b;
    double sum = 0;
    for (size_t i = 0; i < c.values.size(); ++i) sum += c.values[i] * g.values[i];
    return sum;
  };
  Matrix expected(m, k);
  for (size_t i = 0; i < a.values.size(); ++i) {
    Matrix up = a, down = a;
    up.values[i] += kStep;
    down.values[i] -= kStep;
    expected.values[i] = (loss(up) - loss(down)) / (2 * kStep);
  }
  on_squares({2}, DType::f64, [&](Rank& rank, int) {
    const Scratch da = rank.result(m, k);
    abt(rank, rank.block(g), rank.block(b), da);
    EXPECT_LE(rank.error(da, expected), 1e-6);
  });
}

TEST(Summa, SendsTheTwoMatricesThatMove) {
  const int64_t m = 24, k = 12, n = 36;
  on_squares({1, 2, 3, 4}, DType::f32, [&](Rank& rank, int q) {
    const auto counted = [&](const char* axis, CommOp op) {
      const CommKey key{rank.mesh.shape().set(axis), op, DType::f32};
      const auto found = rank.meter.comm().find(key);
      return found == rank.meter.comm().end() ? CommCount{} : found->second;
    };
    const auto check = [&](int64_t row_broadcast, int64_t row_reduced, int64_t col_broadcast, int64_t col_reduced) {
      for (const auto& [axis, op, elements] : {std::tuple{"col", CommOp::broadcast, row_broadcast},
                                               {"col", CommOp::reduce, row_reduced},
                                               {"row", CommOp::broadcast, col_broadcast},
                                               {"row", CommOp::reduce, col_reduced}}) {
        const CommCount count = counted(axis, op);
        EXPECT_EQ(count.elements, q == 1 ? 0 : elements / q);
        EXPECT_EQ(count.calls, q == 1 || elements == 0 ? 0 : q);
        EXPECT_EQ(count.wire_bytes, q == 1 ? 0 : elements / q * (q - 1) * 4);
      }
      rank.meter.reset();
    };
    const Matrix a(m, k), b(k, n);
    const Scratch y = rank.result(m, n);
    ab(rank, rank.block(a), rank.block(b), y);
    check(m * k, 0, k * n, 0);
    abt(rank, rank.block(a), rank.block(transpose(b)), y);
    check(0, m * n, n * k, 0);
    atb(rank, rank.block(transpose(a)), rank.block(b), y);
    check(k * m, 0, 0, m * n);
  });
}

TEST(Summa, SumsABf16ProductInSinglePrecision) {
  // One after the other, ones no longer count beside 256 in bf16.
  const int64_t m = 4, k = 1200, n = 4;
  Matrix a(m, k), b(k, n);
  std::ranges::fill(a.values, 1.0);
  std::ranges::fill(b.values, 1.0);
  for (int64_t r = 0; r < m; ++r) a(r, 0) = 3;
  on_squares({2, 4}, DType::bf16, [&](Rank& rank, int) {
    const Scratch y = rank.result(m, n);
    ab(rank, rank.block(a), rank.block(b), y);
    EXPECT_EQ(rank.error(y, a * b), 0);
  });
}

TEST(Summa, SchedulesChangeNoBit) {
  const int64_t m = 24, k = 36, n = 60;
  const Matrix a = drawn("a", m, k, 0), b = drawn("b", k, n, 0), a_transposed = transpose(a),
               b_transposed = transpose(b);
  /// What all ranks find, the same in every repetition. Messages are late by up to so many seconds.
  const auto run = [&](int q, bool overlap, double delay, int repetitions) {
    std::vector<std::vector<float>> all(static_cast<size_t>(q * q));
    comm::WorldOptions options{.timeout_s = 60};
    if (delay > 0)
      options.delay = [=, count = std::make_shared<std::atomic<uint64_t>>(0)](int) {
        return delay * static_cast<double>(philox_at(philox_key(1, "delay"), count->fetch_add(1)) % 30) / 30;
      };
    comm::run_on_threads(q * q, options, [&](comm::World& world) {
      Rank rank(world, q, DType::f32, overlap);
      const Scratch left = rank.block(a), right = rank.block(b), left_transposed = rank.block(a_transposed),
                    right_transposed = rank.block(b_transposed), y = rank.result(m, n);
      std::vector<float>& first = all[static_cast<size_t>(world.rank())];
      std::vector<float> own;
      const auto keep = [&] {
        const auto values = y.tensor().span<float>();
        own.insert(own.end(), values.begin(), values.end());
      };
      for (int repetition = 0; repetition < repetitions; ++repetition) {
        own.clear();
        ab(rank, left, right, y);
        keep();
        abt(rank, left, right_transposed, y);
        keep();
        atb(rank, left_transposed, right, y);
        keep();
        if (repetition == 0) first = own;
        ASSERT_TRUE(own == first) << "repetition " << repetition;
      }
    });
    return all;
  };
  for (const int q : {2, 3}) {
    const auto usual = run(q, true, 0, 1);
    EXPECT_TRUE(run(q, false, 0, 1) == usual);
    EXPECT_TRUE(run(q, true, 30e-6, q == 2 ? 1000 : 50) == usual);
  }
}

}  // namespace
}  // namespace trainer::pieces
