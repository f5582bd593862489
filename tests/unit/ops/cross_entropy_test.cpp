#include "ops/cross_entropy.h"

#include <cstring>

#include "ops/activation.h"

#include "unit/ops/op_fixture.h"

namespace trainer::ops::testing {
namespace {

template <typename T>
struct Loss : DeviceTest {
  static constexpr DType kType = DTypeOf<T>::value, kSums = accumulator_of(kType);
};
TYPED_TEST_SUITE(Loss, ComputeTypes);

struct Case {
  int64_t rows, vocab, padded;
  double spread;
};
std::vector<Case> cases() {
  return {{1, 1, 1, 1},         {3, 17, 17, 2},       {5, 65, 128, 1},     {4, 5003, 5056, 3},
          {2, 4100, 4100, 200}, {2, 50257, 50304, 2}, {1, 60001, 60032, 1}};
}

/// Expects that `loss`(logits, dlogits) writes the same gradients over the logits, into the first bytes of each row.
/// GPUs do this only if both have one type.
template <typename F>
void expect_same_in_place(TestExec& ex, const TestTensor& logits, const Tensor& want, F loss) {
  TestTensor copy = logits;
  Tensor narrow = copy;
  if (narrow.dtype != want.dtype && ex.device.kind() != device::DeviceKind::cpu) return;
  narrow.pitch = want.cols() * size_of(narrow.dtype) / size_of(want.dtype);
  narrow.dtype = want.dtype;
  loss(copy, narrow);
  for (int64_t r = 0; r < want.rows(); ++r)
    EXPECT_EQ(std::memcmp(narrow.row_range(r, 1).data, want.row_range(r, 1).data,
                          static_cast<size_t>(want.cols() * size_of(want.dtype))),
              0)
        << "row " << r;
}

TYPED_TEST(Loss, MatchesTheFormulaAndItsGradient) {
  using T = TypeParam;
  for (const Case& c : cases()) {
    SCOPED_TRACE(format("[{}, {}] of {}, spread {}", c.rows, c.vocab, c.padded, c.spread));
    Normal draw(61, 3, c.spread);
    TestTensor logits = TestTensor({c.rows, c.padded}, this->kSums).fill(draw), targets({c.rows}, DType::i32),
               weights({c.rows}, this->kSums);
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t i = c.vocab; i < c.padded; ++i) logits.set(r * c.padded + i, 1e30);  // padding, which must not count
      targets.set(r, static_cast<double>((r * 7919) % c.vocab));
      weights.set(r, r == 1 ? 0.0 : 0.5 + static_cast<double>(r));
    }
    targets.set(c.rows > 1 ? 1 : 0, c.rows > 1 ? -100 : 0);  // the target of a masked row is ignored
    const double scale = 0.25;
    TestTensor on_device = TestTensor({1}, DType::f64).fill([&] { return scale; });
    on_every_device(
        [&](TestExec& ex) {
          TestTensor loss({c.rows}, DType::f64), dlogits({c.rows, c.padded}, this->kType), single({c.rows}, DType::f64);
          run(ex, CrossEntropy{logits, targets, weights, loss, dlogits, c.vocab, on_device});
          run(ex, CrossEntropy{logits, targets, weights, single, {}, c.vocab, on_device});
          EXPECT_TRUE(loss.memory() == single.memory());
          expect_same_in_place(ex, logits, dlogits, [&](const Tensor& both, const Tensor& narrow) {
            run(ex, CrossEntropy{both, targets, weights, single, narrow, c.vocab, on_device});
            EXPECT_TRUE(loss.memory() == single.memory());
          });
          return std::vector<TestTensor>{loss, dlogits};
        },
        [&](const std::vector<TestTensor>& out) {
          using Long = long double;
          for (int64_t r = 0; r < c.rows; ++r) {
            Long top = logits.at(r, 0), sum = 0;
            for (int64_t i = 0; i < c.vocab; ++i) top = std::max<Long>(top, logits.at(r, i));
            for (int64_t i = 0; i < c.vocab; ++i) sum += std::exp(static_cast<Long>(logits.at(r, i)) - top);
            const double w = weights.at(r);
            const auto target = static_cast<int64_t>(targets.at(r));
            if (w == 0) {
              EXPECT_EQ(out[0].at(r), 0.0);
            } else {
              const Long want = w * (std::log(sum) + top - static_cast<Long>(logits.at(r, target)));
              const double size = w * (1 + static_cast<double>(std::abs(want)) / w);
              expect_close<AccumulatorOf<T>>(out[0].at(r), static_cast<double>(want), 8, size, format("loss[{}]", r));
            }
            for (int64_t i = 0; i < c.padded; ++i) {
              const Long softmax = i < c.vocab ? std::exp(static_cast<Long>(logits.at(r, i)) - top) / sum : 0;
              const Long want = i < c.vocab && w != 0 ? w * scale * (softmax - (i == target ? 1 : 0)) : 0;
              // exp inherits the rounding error of logit − largest: |logit − largest| · ε.
              const Long distance = i < c.vocab ? top - static_cast<Long>(logits.at(r, i)) : 0;
              const double size = static_cast<double>(w * scale * (softmax * (1 + distance) + (i == target ? 1 : 0)));
              expect_close<T>(out[1].at(r, i), static_cast<double>(want), 8, size + 1e-37,
                              format("dlogits[{}, {}]", r, i));
            }
          }
        });
  }
}

TYPED_TEST(Loss, HasTheTermsOfTheZLossAndTheSlopeOfTheSoftCap) {
  using T = TypeParam;
  const int64_t rows = 4, vocab = 299, padded = 320;
  const double z = 0.02, cap = 3, scale = 0.25;
  TestTensor on_device = TestTensor({1}, DType::f64).fill([&] { return scale; });
  Normal draw(64, 1, 4);
  TestTensor logits = TestTensor({rows, padded}, this->kSums).fill(draw), targets({rows}, DType::i32),
             weights({rows}, this->kSums);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = vocab; i < padded; ++i) logits.set(r * padded + i, 1e30);  // padding, which must not count
    targets.set(r, static_cast<double>(r * 97));
    weights.set(r, r == 2 ? 0.0 : 0.5 + static_cast<double>(r));
  }
  on_every_device(
      [&](TestExec& ex) {
        TestTensor capped = logits, loss({rows}, DType::f64), z_loss = loss, dlogits({rows, padded}, this->kType);
        TestTensor margin = loss, shared_margin = loss;
        run(ex, SoftCap{capped, cap});
        run(ex, CrossEntropy{capped, targets, weights, loss, dlogits, vocab, on_device, {z, z_loss, cap, margin}});
        TestTensor largest = loss, sums({2, rows}, DType::f64), shared = loss, shared_z = loss, shared_d = dlogits;
        const CrossEntropyShard all{capped, targets, 0, vocab};
        run(ex, ShardSums{all, largest, sums});
        run(ex, ShardRescale{all, largest, largest, sums});
        run(ex,
            ShardLoss{
                all, largest, sums, weights, shared, shared_d, vocab, on_device, {z, shared_z, cap, shared_margin}});
        return std::vector<TestTensor>{capped,   loss,     z_loss, dlogits,      shared,
                                       shared_z, shared_d, margin, shared_margin};
      },
      [&](const std::vector<TestTensor>& out) {
        for (int64_t r = 0; r < rows; ++r) {
          const auto target = static_cast<int64_t>(targets.at(r));
          const auto y = [&](int64_t i) { return cap * std::tanh(logits.at(r, i) / cap); };
          double sum = 0;
          for (int64_t i = 0; i < vocab; ++i) sum += std::exp(y(i));
          const double lse = std::log(sum), w = weights.at(r);
          double largest = y(0);
          for (int64_t i = 0; i < vocab; ++i) largest = std::max(largest, y(i));
          for (const size_t at : {size_t{7}, size_t{8}})
            expect_close<AccumulatorOf<T>>(out[at].at(r), w == 0 ? 0 : y(target) - largest, 16, cap, "margin");
          for (const size_t at : {size_t{1}, size_t{4}}) {
            expect_close<AccumulatorOf<T>>(out[at].at(r), w * (lse - y(target)), 32, w * (lse + cap), "loss");
            expect_close<AccumulatorOf<T>>(out[at + 1].at(r), w * z * lse * lse, 32, w * z * lse * lse, "z loss");
          }
          for (int64_t i = 0; i < vocab; ++i) {
            expect_close<AccumulatorOf<T>>(out[0].at(r, i), y(i), 16, cap, format("logit {}", i));
            const double p = std::exp(y(i) - lse), hot = i == target, slope = 1 - y(i) * y(i) / (cap * cap);
            const double want = w * scale * (p * (1 + 2 * z * lse) - hot) * slope;
            for (const size_t at : {size_t{3}, size_t{6}})
              expect_close<T>(out[at].at(r, i), want, 64,
                              w * scale * (p * (1 + 2 * cap) * (1 + 2 * z * lse) + hot) + 1e-37,
                              format("dlogits[{}, {}]", r, i));
          }
          for (int64_t i = vocab; i < padded; ++i) EXPECT_EQ(out[3].at(r, i), 0);
        }
      });
}

// Three ranks share the vocabulary, the last has no token; this test does the reductions between the steps.
TYPED_TEST(Loss, OfSharedVocabulariesIsThatOfOne) {
  using T = TypeParam;
  const int64_t rows = 5, vocab = 300, firsts[] = {0, 180, 300}, counts[] = {180, 120, 0}, padded[] = {192, 128, 8};
  Normal draw(63, 1, 3);
  TestTensor whole = TestTensor({rows, vocab}, this->kSums).fill(draw), targets({rows}, DType::i32),
             weights({rows}, this->kSums);
  std::vector<TestTensor> logits;
  for (int rank = 0; rank < 3; ++rank) {
    logits.push_back(TestTensor({rows, padded[rank]}, this->kSums).fill([] { return 1e30; }));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < counts[rank]; ++i) logits.back().set(r * padded[rank] + i, whole.at(r, firsts[rank] + i));
  }
  for (int64_t r = 0; r < rows; ++r) {
    targets.set(r, static_cast<double>(r == 4 ? 299 : r * 61));
    weights.set(r, r == 2 ? 0.0 : 0.5 + static_cast<double>(r));
  }
  TestTensor scale = TestTensor({1}, DType::f64).fill([] { return 0.25; });
  on_every_device(
      [&](TestExec& ex) {
        std::vector<TestTensor> largest, sums, results;
        TestTensor top({rows}, DType::f64), total({2, rows}, DType::f64), loss({rows}, DType::f64);
        top.fill([] { return -std::numeric_limits<double>::infinity(); });
        total.fill([] { return 0.0; });
        const auto shard = [&](size_t rank) {
          return CrossEntropyShard{logits[rank], targets, firsts[rank], counts[rank]};
        };
        for (size_t rank = 0; rank < 3; ++rank) {
          largest.emplace_back(Shape{rows}, DType::f64);
          sums.emplace_back(Shape{2, rows}, DType::f64);
          run(ex, ShardSums{shard(rank), largest[rank], sums[rank]});
          for (int64_t r = 0; r < rows; ++r) top.set(r, std::max(top.at(r), largest[rank].at(r)));
        }
        for (size_t rank = 0; rank < 3; ++rank) {
          run(ex, ShardRescale{shard(rank), largest[rank], top, sums[rank]});
          for (int64_t i = 0; i < 2 * rows; ++i) total.set(i, total.at(i) + sums[rank].at(i));
        }
        for (size_t rank = 0; rank < 3; ++rank) {
          TestTensor dlogits({rows, padded[rank]}, this->kType), single({rows}, DType::f64);
          run(ex, ShardLoss{shard(rank), top, total, weights, loss, dlogits, vocab, scale});
          run(ex, ShardLoss{shard(rank), top, total, weights, single, {}, vocab, scale});
          EXPECT_TRUE(loss.memory() == single.memory());
          expect_same_in_place(ex, logits[rank], dlogits, [&](const Tensor& both, const Tensor& narrow) {
            const CrossEntropyShard here{both, targets, firsts[rank], counts[rank]};
            run(ex, ShardLoss{here, top, total, weights, single, narrow, vocab, scale});
            EXPECT_TRUE(loss.memory() == single.memory());
          });
          results.push_back(dlogits);
        }
        results.push_back(loss);
        return results;
      },
      [&](const std::vector<TestTensor>& out) {
        for (int64_t r = 0; r < rows; ++r) {
          double top = whole.at(r, 0), sum = 0;
          for (int64_t i = 0; i < vocab; ++i) top = std::max(top, whole.at(r, i));
          for (int64_t i = 0; i < vocab; ++i) sum += std::exp(whole.at(r, i) - top);
          const auto target = static_cast<int64_t>(targets.at(r));
          const double w = weights.at(r), want = std::log(sum) + top - whole.at(r, target);
          expect_close<AccumulatorOf<T>>(out[3].at(r), w * want, 8, w * (1 + std::abs(want)), format("loss[{}]", r));
          for (size_t rank = 0; rank < 3; ++rank)
            for (int64_t i = 0; i < padded[rank]; ++i) {
              const int64_t token = firsts[rank] + i;
              const bool here = i < counts[rank];
              const double softmax = here ? std::exp(whole.at(r, token) - top) / sum : 0, hot = token == target;
              const double distance = here ? top - whole.at(r, token) : 0;
              expect_close<T>(out[rank].at(r, i), here ? w * 0.25 * (softmax - hot) : 0, 8,
                              w * 0.25 * (softmax * (1 + distance) + hot) + 1e-37,
                              format("dlogits[{}, {}] of rank {}", r, i, rank));
            }
        }
      });
}

// Values from an independent program: two micro-batches of two replicas, with four rows each, of which 7 count.
TYPED_TEST(Loss, OfMaskedRowsIsTheMeanOverThoseThatCount) {
  using T = TypeParam;
  constexpr int64_t kRows = 16, kVocab = 5;
  const double counts[kRows] = {1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1};
  TestTensor logits({kRows, kVocab}, this->kSums), targets({kRows}, DType::i32), weights({kRows}, this->kSums);
  for (int64_t g = 0; g < 4; ++g)
    for (int64_t r = 0; r < 4; ++r) {
      targets.set(4 * g + r, static_cast<double>((g + 2 * r) % kVocab));
      weights.set(4 * g + r, counts[4 * g + r]);
      for (int64_t v = 0; v < kVocab; ++v)
        logits.set((4 * g + r) * kVocab + v, 2 * std::sin(static_cast<double>(1 + 3 * g + 5 * r + 7 * v + 2 * r * v)));
    }
  TestTensor scale = TestTensor({1}, DType::f64).fill([] { return 1.0 / 7; });
  for (const int64_t ranks : {1, 2, 4}) {  // that share the vocabulary; of four, the last has no token
    const int64_t width = (kVocab + ranks - 1) / ranks;
    on_every_device(
        [&](TestExec& ex) {
          TestTensor loss({kRows}, DType::f64), z_loss = loss, all({kRows, kVocab}, this->kType);
          if (ranks == 1) {
            run(ex, CrossEntropy{logits, targets, weights, loss, all, kVocab, scale});
            run(ex, CrossEntropy{logits, targets, weights, loss, {}, kVocab, scale, {.z = 0.01, .z_loss = z_loss}});
            return std::vector<TestTensor>{loss, z_loss, all};
          }
          TestTensor top = loss.fill([] { return -INFINITY; }), total({2, kRows}, DType::f64);
          total.fill([] { return 0.0; });
          std::vector<TestTensor> parts, largest, sums;
          const auto shard = [&](int64_t rank) {
            const int64_t first = std::min(kVocab, rank * width);
            return CrossEntropyShard{parts[static_cast<size_t>(rank)], targets, first, std::min(width, kVocab - first)};
          };
          for (int64_t rank = 0; rank < ranks; ++rank) {
            TestTensor& part = parts.emplace_back(Shape{kRows, width}, this->kSums);
            for (int64_t i = 0; i < kRows * width; ++i)
              part.set(i, rank * width + i % width < kVocab ? logits.at(i / width, rank * width + i % width) : 1e30);
            run(ex, ShardSums{shard(rank), largest.emplace_back(Shape{kRows}, DType::f64),
                              sums.emplace_back(Shape{2, kRows}, DType::f64)});
            for (int64_t r = 0; r < kRows; ++r) top.set(r, std::max(top.at(r), largest.back().at(r)));
          }
          for (size_t rank = 0; rank < parts.size(); ++rank) {
            run(ex, ShardRescale{shard(static_cast<int64_t>(rank)), largest[rank], top, sums[rank]});
            for (int64_t i = 0; i < 2 * kRows; ++i) total.set(i, total.at(i) + sums[rank].at(i));
          }
          for (int64_t rank = 0; rank < ranks; ++rank) {
            TestTensor own({kRows, width}, this->kType), unused = loss;
            run(ex, ShardLoss{shard(rank), top, total, weights, loss, own, kVocab, scale});
            run(ex,
                ShardLoss{shard(rank), top, total, weights, unused, {}, kVocab, scale, {.z = 0.01, .z_loss = z_loss}});
            for (int64_t i = 0; i < kRows * width; ++i)
              if (rank * width + i % width < kVocab) all.set(i / width * kVocab + rank * width + i % width, own.at(i));
          }
          return std::vector<TestTensor>{loss, z_loss, all};
        },
        [&](const std::vector<TestTensor>& out) {
          double loss = 0, with_z = 0, squares = 0;
          for (int64_t r = 0; r < kRows; ++r) {
            loss += out[0].at(r) / 7;
            with_z += (out[0].at(r) + out[1].at(r)) / 7;
            for (int64_t v = 0; v < kVocab; ++v) {
              squares += out[2].at(r, v) * out[2].at(r, v);
              if (counts[r] == 0) {
                EXPECT_EQ(out[2].at(r, v), 0.0);
              }
            }
          }
          const auto expect = [](double found, double expected, const char* what) {
            expect_close<T>(found, expected, 16, 1, what);
          };
          expect_close<AccumulatorOf<T>>(loss, 2.147545557596751, 16, 4, "loss");
          expect_close<AccumulatorOf<T>>(with_z, 2.2013178821836932, 16, 4, "loss with z-loss");
          expect(std::sqrt(squares), 0.37190369877752322, "norm");
          expect(out[2].at(0, 1), 0.058934494096262155, "dlogits[0, 0, 1]");
          expect(out[2].at(6, 0), -0.080904482861657093, "dlogits[1, 2, 0]");
          expect(out[2].at(15, 4), -0.09032839448277824, "dlogits[3, 3, 4]");
        });
  }
}

TYPED_TEST(Loss, NonFiniteLogitsGiveANonFiniteLoss) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    Normal draw(62);
    TestTensor logits = TestTensor({2, 40}, this->kSums).fill(draw), targets({2}, DType::i32);
    targets.fill([] { return 3; });
    logits.set(40 + 21, bad);
    on_every_device(
        [&](TestExec& ex) {
          TestTensor loss({2}, DType::f64);
          run(ex, CrossEntropy{logits, targets, {}, loss, {}, 40});
          EXPECT_TRUE(std::isfinite(loss.at(0)));
          EXPECT_FALSE(std::isfinite(loss.at(1)));
          return std::vector<TestTensor>{};
        },
        [](const std::vector<TestTensor>&) {});
  }
}

TEST(LossChecks, RejectATargetOutsideTheVocabulary) {
  device::CpuDevice device(1);
  Arena arena(device, Arena::Mode::heap);
  Meter meter;
  Exec ex{device, arena, meter};
  TestTensor logits({1, 8}, DType::f32), targets({1}, DType::i32), loss({1}, DType::f64);
  logits.fill([] { return 0.0; });
  for (const int bad : {-1, 6}) {
    targets.set(0, bad);
    EXPECT_THROW(run(ex, CrossEntropy{logits, targets, {}, loss, {}, 6}), Error);
  }
}

}  // namespace
}  // namespace trainer::ops::testing
