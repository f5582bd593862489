#include "unit/ops/attention_problem.h"

#include <algorithm>

namespace trainer::ops::attention_test {
namespace {

std::vector<Case> training_cases() {
  std::vector<Case> cases;
  const auto add = [&](int64_t batch, int64_t length, int64_t heads, int64_t kv_heads, int64_t head_dim,
                       double dropout) {
    cases.push_back({{batch, length, length, 0, heads, kv_heads, head_dim}, dropout});
  };
  for (const double dropout : {0.0, 0.3}) {
    add(1, 1, 1, 1, 1, dropout);
    add(2, 3, 2, 1, 5, dropout);
    add(2, 5, 3, 3, 16, dropout);
    add(1, 63, 2, 2, 64, dropout);
    add(1, 64, 1, 1, 48, dropout);
    add(1, 65, 4, 2, 80, dropout);
    add(2, 129, 6, 2, 24, dropout);
    add(1, 200, 2, 1, 128, dropout);
    add(1, 517, 2, 1, 7, dropout);  // several chunks of keys, the last one short
    add(1, 131, 1, 1, 300, dropout);
  }
  return cases;
}

struct Attention : testing::DeviceTest {};
template <typename T>
class AttentionOf : public testing::DeviceTest {};
using Types = ::testing::Types<double, float, bf16>;
TYPED_TEST_SUITE(AttentionOf, Types);

/// Windows and documents that end within blocks, at their edges, and several blocks away.
std::vector<Case> masked_cases() {
  std::vector<Case> cases;
  const auto add = [&](int64_t batch, int64_t length, int64_t heads, int64_t kv_heads, int64_t head_dim, double dropout,
                       int64_t window, double documents) {
    cases.push_back({{batch, length, length, 0, heads, kv_heads, head_dim}, dropout, 1, true, window, documents});
  };
  for (const int64_t length : {5, 65, 150}) {
    for (const int64_t window : {int64_t{1}, int64_t{2}, int64_t{3}, length - 1, length, length + 5})
      add(2, length, 2, 1, 16, 0, window, 0);
    add(2, length, 4, 2, 24, 0, 0, 0.05);
    add(2, length, 2, 2, 24, 0.2, length / 2, 0.02);
  }
  if (testing::on_cuda()) return cases;  // attention_shapes_test.cpp has longer ones with few heads
  add(1, 517, 2, 1, 7, 0, 40, 0);        // several chunks of keys, most of which a query does not see
  add(1, 517, 1, 1, 8, 0.1, 0, 0.004);
  add(1, 600, 2, 1, 8, 0, 300, 0.01);
  add(1, 400, 1, 1, 300, 0, 64, 0);
  return cases;
}

TYPED_TEST(AttentionOf, MatchesItsDefinitionForwardAndBackward) {
  using T = TypeParam;
  for (const auto isa : testing::instruction_sets()) {
    Machine cpu(2, isa);
    std::vector<Case> cases = training_cases(), masked = masked_cases();
    cases.insert(cases.end(), masked.begin(), masked.end());
    for (const Case& c : cases) {
      SCOPED_TRACE(to_string(c) + ", " + std::string(device::name_of(isa)));
      Problem<T> x(c);
      const Problem<T> before = x;
      x.forward(cpu.ex);
      x.backward(cpu.ex);
      const double u = unit_roundoff<T>();
      expect_close(c, before, x, bound<T>(1e-14, 32 * u, u), bound<T>(1e-14, 1e-5, 1e-5),
                   bound<T>(1e-13, 64 * u, 2 * u));
    }
  }
}

TEST_F(Attention, GradientsMatchFiniteDifferencesOfItsOwnForward) {
  SKIP_ON_CUDA("differences need fp64");
  for (const double dropout : {0.0, 0.4}) {
    const Case c{{1, 9, 9, 0, 4, 2, 6}, dropout};
    SCOPED_TRACE(to_string(c));
    Machine cpu(2);
    Problem<double> x(c);
    x.forward(cpu.ex);
    x.backward(cpu.ex);
    const auto loss = [&] {
      x.forward(cpu.ex);
      double sum = 0;
      for (int64_t r = 0; r < x.out.rows; ++r)
        for (int64_t e = 0; e < x.out.cols; ++e) sum += x.out.value(r, e) * x.dout.value(r, e);
      return sum;
    };
    const auto check = [&](Rows<double>& operand, const Rows<double>& gradient, const char* name) {
      const double h = 1e-3;
      for (int64_t r = 0; r < operand.rows; ++r) {
        for (int64_t e = 0; e < operand.cols; ++e) {
          const double at = operand.at(r, e);
          const auto moved = [&](double by) {
            operand.at(r, e) = at + by;
            const double value = loss();
            operand.at(r, e) = at;
            return value;
          };
          const double slope = (8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h);
          ASSERT_NEAR(gradient.value(r, e), slope, 1e-9) << name << " [" << r << ", " << e << "]";
        }
      }
    };
    check(x.q, x.dq, "dq");
    check(x.k, x.dk, "dk");
    check(x.v, x.dv, "dv");
  }
}

TYPED_TEST(AttentionOf, ReadsACacheOfAnyLength) {
  using T = TypeParam;
  Machine cpu(3);
  std::vector<Case> cases;
  for (const int64_t queries : {1, 2, 4, 5, 70, 130})
    for (const int64_t keys : {130, 131, 200, 300})
      for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{1, 1}, {4, 2}, {3, 1}})
        cases.push_back({{2, queries, keys, keys + 9, heads, kv_heads, queries == 2 ? 5 : 48}});
  cases.push_back({{1, 1, 1, 16, 2, 2, 64}});
  for (const int64_t queries : {1, 3, 70})
    for (const int64_t window : {1, 100, 257, 300, 700})
      cases.push_back({{2, queries, 600, 609, 4, 2, 48}, 0, 1, true, window, queries == 3 ? 0.3 : 0});
  for (const int64_t queries : {1, 3, 70})  // keys before and after those that the queries see
    for (const int64_t window : {0, 100})
      for (const int64_t first_key : {0, 1000})
        cases.push_back({{2, queries, 400, 0, 4, 2, 48, false, first_key + 150, first_key},
                         0,
                         1,
                         true,
                         window,
                         first_key == 0 ? 0.05 : 0});
  for (const Case& c : cases) {
    SCOPED_TRACE(to_string(c));
    Problem<T> x(c);
    x.forward(cpu.ex);
    const Reference<T> expected(x, false);
    const double u = unit_roundoff<T>();
    EXPECT_LE(relative_error(x.out, expected.out), bound<T>(64 * u, 64 * u, u));
    EXPECT_LE(relative_error(x.lse, expected.lse), bound<T>(1e-14, 1e-5, 1e-5));
    if (testing::on_cuda()) continue;
    expect_same_bits_by_head(x, [&](const AttentionForward& op) { run(cpu.ex, op); });
  }
}

TYPED_TEST(AttentionOf, DecodingWithACacheEqualsTheRowsOfOnePass) {
  using T = TypeParam;
  const int64_t length = 150, heads = 4, kv_heads = 2, d = 32;
  Machine cpu(2);
  Problem<T> whole(Case{{1, length, length, 0, heads, kv_heads, d}, 0, 1, false});
  whole.forward(cpu.ex);
  for (int64_t position = 0; position < length; position += 7) {
    std::vector<T> out(static_cast<size_t>(heads * d));
    const Tensor row{reinterpret_cast<std::byte*>(out.data()), {1, heads * d}, DTypeOf<T>::value};
    run(cpu.ex, AttentionForward{whole.q.view().row_range(position, 1),
                                 whole.k.view(),
                                 whole.v.view(),
                                 row,
                                 {},
                                 {1, 1, position + 1, length, heads, kv_heads, d, false, position},
                                 whole.scale,
                                 {}});
    for (int64_t e = 0; e < heads * d; ++e)
      ASSERT_NEAR(static_cast<double>(out[e]), whole.out.value(position, e), 16 * unit_roundoff<T>())
          << "position " << position << " column " << e;
  }
}

TYPED_TEST(AttentionOf, HasTheSameBitsWithoutAMaskAndWithOneThatHidesNothing) {
  using T = TypeParam;
  for (const double dropout : {0.0, 0.2}) {
    for (const int64_t length : testing::on_cuda() ? std::vector<int64_t>{70} : std::vector<int64_t>{3, 64, 200, 517}) {
      SCOPED_TRACE(length);
      Machine cpu(2);
      Problem<T> plain(Case{{2, length, length, 0, 4, 2, 16}, dropout}), masked = plain, wide = plain;
      masked.first.assign(static_cast<size_t>(2 * length), 0);
      wide.c.window = length;
      for (Problem<T>* x : {&plain, &masked, &wide}) {
        x->forward(cpu.ex);
        x->backward(cpu.ex);
        expect_same_bits(*x, plain);
      }
    }
  }
}

TYPED_TEST(AttentionOf, DoesNotDependOnTheThreadCount) {
  using T = TypeParam;
  for (const Case& c : {Case{{1, 300, 300, 0, 2, 1, 33}, 0.2}, Case{{3, 130, 130, 0, 4, 4, 16}},
                        Case{{1, 600, 600, 0, 1, 1, 8}}, Case{{2, 300, 300, 0, 2, 1, 8}, 0, 1, true, 90, 0.01}}) {
    SCOPED_TRACE(to_string(c));
    std::vector<Problem<T>> runs;
    for (const int threads : {1, 2, 3, 5}) {
      SCOPED_TRACE(fmt::format("{} threads", threads));
      Machine cpu(threads);
      Problem<T> x(c);
      x.forward(cpu.ex);
      x.backward(cpu.ex);
      runs.push_back(std::move(x));
      expect_same_bits(runs[0], runs.back());
    }
  }
}

TYPED_TEST(AttentionOf, SurvivesVeryLargeScores) {
  using T = TypeParam;
  Machine cpu(2);
  Problem<T> x(Case{{1, 140, 140, 0, 2, 1, 16}, 0, 60});  // scores in the tens of thousands
  x.forward(cpu.ex);
  x.backward(cpu.ex);
  expect_bounded(x);
}

TYPED_TEST(AttentionOf, PassesNanOnToTheRowsThatSeeIt) {
  using T = TypeParam;
  for (const int64_t length : {3, 150}) {
    Machine cpu(2);
    Problem<T> x(Case{{1, length, length, 0, 1, 1, 16}});
    spoil(x, length - 2);
    x.forward(cpu.ex);
    expect_nan_from(x, length - 2);
  }
}

TEST_F(Attention, DropoutKeepsTheMean) {
  SKIP_ON_CUDA("fp64");
  // v = 1: an output is the sum of the kept probabilities, of mean 1 and variance p/(1−p)·Σ P² over masks.
  const int64_t length = 256, heads = 8;
  const double p = 0.25;
  Machine cpu(2);
  Problem<double> x(Case{{1, length, length, 0, heads, heads, 2}, p, 0.1});
  for (double& value : x.v.data) value = 1;
  x.forward(cpu.ex);
  double sum = 0, rows = 0;
  for (int64_t r = 64; r < length; ++r)
    for (int64_t h = 0; h < heads; ++h, ++rows) sum += x.out.value(r, 2 * h);
  const double deviation = std::sqrt(p / (1 - p) / 64 / rows);  // Σ P² is about 1/64 at most
  EXPECT_NEAR(sum / rows, 1, 4 * deviation);
}

TEST_F(Attention, ReplaysTheMemoryPlanOfItsDryRun) {
  for (const Case& c : {Case{{2, 70, 70, 0, 4, 2, 16}}, Case{{1, 1, 50, 64, 4, 2, 16}}}) {
    const auto device = testing::make_test_device(2, device::detect_isa()), dry = device::make_dry(*device);
    Arena arena(*device);
    Meter meter, dry_meter;
    TestExec ex{{*device, arena, meter}}, dry_ex{{*dry, arena, dry_meter}};
    Problem<float> x(c);
    const auto step = [&](TestExec& exec) {
      x.forward(exec);
      if (c.shape.q_len == c.shape.k_len) x.backward(exec);
    };
    arena.record("step", [&] { step(dry_ex); });
    arena.seal();
    arena.begin("step");
    step(ex);  // the arena rejects a take that differs from the recorded one
    arena.end();
    EXPECT_GT(arena.largest_program(), 0);
    EXPECT_EQ(dry_meter.of(OpKind::attention).flops, meter.of(OpKind::attention).flops);
    EXPECT_LE(relative_error(x.out, Reference<float>(x, false).out), 1e-6);
  }
}

TEST_F(Attention, CountsWhatCausalityLeaves) {
  Problem<float> x(Case{{2, 3, 3, 0, 4, 2, 16}});
  const AttentionForward forward{x.q.view(), x.k.view(), x.v.view(), x.out.view(), {}, x.c.shape, 1, {}};
  EXPECT_EQ(cost(forward).flops, 2.0 * 4 * 16 * 4 * (1 + 2 + 3));
  Problem<float> cached(Case{{1, 2, 5, 0, 1, 1, 8}});
  const AttentionForward tail{
      cached.q.view(), cached.k.view(), cached.v.view(), cached.out.view(), {}, cached.c.shape, 1, {}};
  EXPECT_EQ(cost(tail).flops, 4.0 * 8 * (4 + 5));
  const auto with_window = [](AttentionForward op, int64_t window) {
    op.mask.window = window;
    return cost(op).flops;
  };
  EXPECT_EQ(with_window(forward, 2), 2.0 * 4 * 16 * 4 * (1 + 2 + 2));
  EXPECT_EQ(with_window(forward, 3), cost(forward).flops);
  EXPECT_EQ(with_window(forward, 9), cost(forward).flops);
  EXPECT_EQ(with_window(tail, 3), 4.0 * 8 * (3 + 3));
  EXPECT_EQ(with_window(tail, 4), 4.0 * 8 * (4 + 4));
  EXPECT_EQ(with_window(tail, 5), cost(tail).flops);
}

TEST_F(Attention, RejectsKeysByHeadWhereNoKernelReadsThem) {
  Machine machine(1);
  Problem<float> x(Case{{1, 4, 4, 0, 2, 2, 8}});
  x.k = by_head(x, x.k, false);
  x.v = by_head(x, x.v, false);
  x.c.shape.by_head = true;
  EXPECT_THROW(x.backward(machine.ex), Error);
  if (testing::on_cuda()) {
    EXPECT_THROW(x.forward(machine.ex), Error);
  }
}

TEST_F(Attention, NamesTheOperandThatDoesNotFit) {
  Machine cpu(1);
  Problem<float> x(Case{{1, 4, 4, 0, 2, 2, 8}});
  AttentionForward op{x.q.view(), x.k.view(), x.v.view().col_range(0, 8), x.out.view(), {}, x.c.shape, 1, {}};
  try {
    run(cpu.ex, op);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("attention v"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace trainer::ops::attention_test
