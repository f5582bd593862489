#include "ops/adamw.h"

#include <bit>

#include "unit/ops/op_fixture.h"

namespace trainer::ops::testing {
namespace {

AdamWScalars scalars(int64_t t, double decay) {
  const double lr = 3e-4, b1 = 0.9, b2 = 0.95;
  const double td = static_cast<double>(t);
  return {
      b1,  b2, 1 / std::sqrt(1 - std::pow(b2, td)), 1e-8, -lr / (1 - std::pow(b1, td)), decay == 0 ? 0 : -lr * decay,
      0.37};
}

/// The canonical arithmetic, one element at a time.
template <typename T>
void reference(const AdamWScalars& s, T& p, T& m, T& v, T g) {
  auto r = [](double x) { return static_cast<T>(x); };
  const T x = g * r(s.gradient_scale);
  m = std::fma(r(s.beta1), m, r(1 - s.beta1) * x);
  const T ob2x = r(1 - s.beta2) * x;
  v = std::fma(r(s.beta2), v, ob2x * x);
  const T d = std::fma(std::sqrt(v), r(s.inv_sqrt_correction), r(s.eps));
  const T u = m / d;
  const T q = std::fma(r(s.negative_decay), p, p);
  p = std::fma(r(s.negative_step), u, q);
}

/// Returns a value of any kind: any finite exponent, subnormals, both zeros, the largest finite value, infinities; but
/// no NaN, whose payload instructions may choose.
template <typename T>
T any_value(std::mt19937_64& engine, bool negative) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  const uint64_t draw = engine();
  const T sign = negative && (draw & 1) != 0 ? T(-1) : T(1);
  switch (draw >> 1 & 15) {
    case 0:
      return sign * T(0);
    case 1:
      return sign * std::numeric_limits<T>::denorm_min() * static_cast<T>(draw >> 50);
    case 2:
      return (draw >> 8 & 31) == 0 ? sign * std::numeric_limits<T>::infinity() : sign * std::numeric_limits<T>::max();
    case 3:
    case 4:
    case 5: {
      const T value = std::bit_cast<T>(static_cast<Bits>(engine()));
      if (std::isnan(value)) return sign;
      return negative ? value : std::abs(value);
    }
    default:
      return sign * static_cast<T>(std::ldexp(static_cast<double>(draw >> 12), -52 - static_cast<int>(draw >> 5 & 31)));
  }
}

template <typename T>
struct State {
  std::vector<T> p, m, v, g;
  std::vector<bf16> compute;
  explicit State(int64_t n, uint64_t seed) {
    std::mt19937_64 engine(seed);
    for (int64_t i = 0; i < n; ++i) {
      p.push_back(any_value<T>(engine, true));
      m.push_back(any_value<T>(engine, true));
      v.push_back(any_value<T>(engine, false));
      g.push_back(any_value<T>(engine, true));
    }
    compute.assign(static_cast<size_t>(n), bf16(0.0f));
  }
  Tensor tensor(std::vector<T>& x) {
    return {reinterpret_cast<std::byte*>(x.data()), {static_cast<int64_t>(x.size())}, DTypeOf<T>::value, 0};
  }
};

template <typename T>
void expect_same_bits(const std::vector<T>& got, const std::vector<T>& want, const char* name) {
  int64_t differ = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    if (std::memcmp(&got[i], &want[i], sizeof(T)) != 0 && ++differ == 1)
      ADD_FAILURE() << name << "[" << i << "]: " << got[i] << ", want " << want[i];
  }
  EXPECT_EQ(differ, 0) << name;
}

template <typename T>
struct Adam : DeviceTest {};
using StateTypes = ::testing::Types<double, float>;
TYPED_TEST_SUITE(Adam, StateTypes);

TYPED_TEST(Adam, EveryInstructionSetRoundsAsTheScalarLoop) {
  using T = TypeParam;
  const int64_t n = (int64_t{1} << 18) + 13;
  uint64_t seed = 71;
  for (const int64_t t : {1, 2, 1000}) {
    for (const double decay : {0.0, 0.1}) {
      SCOPED_TRACE(format("seed {}, step {}, weight decay {}", seed, t, decay));
      const AdamWScalars s = scalars(t, decay);
      State<T> want(n, seed);
      for (size_t i = 0; i < want.p.size(); ++i) {
        reference<T>(s, want.p[i], want.m[i], want.v[i], want.g[i]);
        want.compute[i] = bf16(static_cast<float>(want.p[i]));
      }
      for (const Isa isa : instruction_sets()) {
        for (const int threads : {1, 3}) {
          SCOPED_TRACE(format("{}, {} threads", device::name_of(isa), threads));
          Machine machine(threads, isa);
          TestExec& ex = machine.ex;
          State<T> x(n, seed);
          AdamW op{x.tensor(x.p), x.tensor(x.m), x.tensor(x.v), x.tensor(x.g), {}, s};
          if (sizeof(T) == 4) op.compute = {reinterpret_cast<std::byte*>(x.compute.data()), {n}, DType::bf16, 0};
          run(ex, op);
          expect_same_bits(x.p, want.p, "p");
          expect_same_bits(x.m, want.m, "m");
          expect_same_bits(x.v, want.v, "v");
          if (sizeof(T) == 4) {
            EXPECT_EQ(std::memcmp(x.compute.data(), want.compute.data(), x.compute.size() * 2), 0) << "bf16 copy";
          }
        }
      }
      ++seed;
    }
  }
}

TYPED_TEST(Adam, KeepsSubnormalsNegativeZeroAndOddTails) {
  using T = TypeParam;
  const T tiny = std::numeric_limits<T>::denorm_min();
  for (const Isa isa : instruction_sets()) {
    for (int64_t n = 1; n <= 35; ++n) {
      Machine machine(2, isa);
      TestExec& ex = machine.ex;
      State<T> x(n, 1);
      std::fill(x.p.begin(), x.p.end(), T(-0.0));
      std::fill(x.m.begin(), x.m.end(), tiny * 100);
      std::fill(x.v.begin(), x.v.end(), T(0));
      std::fill(x.g.begin(), x.g.end(), T(0));
      AdamWScalars s = scalars(1, 0);
      s.negative_step = -0.0;
      run(ex, AdamW{x.tensor(x.p), x.tensor(x.m), x.tensor(x.v), x.tensor(x.g), {}, s});
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_EQ(x.m[static_cast<size_t>(i)], tiny * 90);
        EXPECT_TRUE(x.p[static_cast<size_t>(i)] == 0 && std::signbit(x.p[static_cast<size_t>(i)])) << n << " " << i;
      }
    }
  }
}

struct AdamBf16 : testing::DeviceTest {};

TEST_F(AdamBf16, AGradientRoundedHereOrSentAsBf16GivesTheSameBits) {
  const int64_t n = (int64_t{1} << 16) + 13;
  const AdamWScalars s = scalars(3, 0.1);
  State<float> want(n, 75), initial(n, 75);
  std::vector<bf16> sent;
  for (size_t i = 0; i < want.p.size(); ++i) {
    sent.push_back(bf16(want.g[i]));
    reference<float>(s, want.p[i], want.m[i], want.v[i], static_cast<float>(sent.back()));
  }
  for (const Isa isa : instruction_sets())
    for (const bool narrow : {false, true}) {
      SCOPED_TRACE(format("{}, {}", device::name_of(isa), narrow ? "sent" : "rounded here"));
      Machine machine(2, isa);
      State<float> x = initial;
      AdamW op{x.tensor(x.p), x.tensor(x.m), x.tensor(x.v), x.tensor(x.g), {}, s};
      op.round_gradient = !narrow;
      if (narrow) op.g = {reinterpret_cast<std::byte*>(sent.data()), {n}, DType::bf16, 0};
      run(machine.ex, op);
      expect_same_bits(x.p, want.p, "p");
      expect_same_bits(x.m, want.m, "m");
      expect_same_bits(x.v, want.v, "v");
    }
}

TEST_F(AdamBf16, ALargeCopyIsTheSameWithinAndPastTheCaches) {
  const int64_t n = (int64_t{1} << 19) + 77;  // more than a core's own caches
  const AdamWScalars s = scalars(3, 0.1);
  const State<float> initial(n, 76);
  for (const Isa isa : instruction_sets())
    for (const int64_t offset : {0, 1}) {  // only whole cache lines are written past the caches
      SCOPED_TRACE(format("{}, {} elements past a line", device::name_of(isa), offset));
      Machine machine(2, isa);
      State<float> x = initial;
      std::vector<bf16> room(static_cast<size_t>(n) + 64, bf16(3.0f));
      const auto past_line = static_cast<int64_t>(reinterpret_cast<uintptr_t>(room.data()) % 64 / sizeof(bf16));
      bf16* const copy = room.data() + (32 - past_line) % 32 + offset;
      const Tensor compute{reinterpret_cast<std::byte*>(copy), {n}, DType::bf16, 0};
      run(machine.ex, AdamW{x.tensor(x.p), x.tensor(x.m), x.tensor(x.v), x.tensor(x.g), compute, s});
      int64_t wrong = 0;
      for (int64_t i = 0; i < n; ++i) wrong += copy[i].bits != bf16(x.p[static_cast<size_t>(i)]).bits;
      EXPECT_EQ(wrong, 0);
      EXPECT_EQ(copy[n].bits, bf16(3.0f).bits) << "the element behind the copy";
    }
}

uint32_t mixed(uint32_t h) {
  h = (h ^ h >> 16) * 0x7feb352du;
  h = (h ^ h >> 15) * 0x846ca68bu;
  return h ^ h >> 16;
}
/// The stored second moment, as ops/adamw.h defines it.
bf16 stored_second(float v, float old_p, int64_t t) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  const uint32_t h = mixed(bits ^ mixed(std::bit_cast<uint32_t>(old_p) + static_cast<uint32_t>(t) * 0x9e3779b9u));
  return bf16(std::bit_cast<float>((bits + (h & 0xffffu)) & 0xffff0000u));
}

TEST_F(AdamBf16, StoredSecondMomentsHaveTheBitsOfTheDefinition) {
  // v, p, t and the stored bits, from an independent program.
  struct Golden {
    uint32_t v, p;
    int64_t t;
    uint16_t stored;
  };
  const Golden goldens[] = {{0x38d1b717, 0x3ca3d70a, 1, 0x38d2},    {0x340637bd, 0xbcf5c28f, 2, 0x3406},
                            {0x40400000, 0x3f800000, 1000, 0x4040}, {0x000116c2, 0xbf000000, 17, 0x0001},
                            {0x00000000, 0x3dcccccd, 3, 0x0000},    {0x38991794, 0x00000000, 123456789012, 0x3899}};
  for (const Golden& golden : goldens)
    EXPECT_EQ(stored_second(std::bit_cast<float>(golden.v), std::bit_cast<float>(golden.p), golden.t).bits,
              golden.stored);
}

struct SmallMoments {
  std::vector<bf16> m, v;
  explicit SmallMoments(const State<float>& wide) {
    for (size_t i = 0; i < wide.m.size(); ++i) {
      m.push_back(bf16(wide.m[i]));
      v.push_back(bf16(wide.v[i]));
    }
  }
  static Tensor tensor(std::vector<bf16>& x) {
    return {reinterpret_cast<std::byte*>(x.data()), {static_cast<int64_t>(x.size())}, DType::bf16, 0};
  }
};

TEST_F(AdamBf16, MomentsInBf16FollowTheScalarLoopOnEveryInstructionSet) {
  const int64_t n = (int64_t{1} << 16) + 13, t = 7;
  AdamWScalars s = scalars(t, 0.1);
  s.t = t;
  const State<float> initial(n, 79);
  for (const bool rounds : {false, true}) {
    State<float> want = initial;
    SmallMoments stored(initial);
    for (size_t i = 0; i < want.p.size(); ++i) {
      const float old = want.p[i], g = rounds ? static_cast<float>(bf16(want.g[i])) : want.g[i];
      want.m[i] = static_cast<float>(stored.m[i]);
      want.v[i] = static_cast<float>(stored.v[i]);
      reference<float>(s, want.p[i], want.m[i], want.v[i], g);
      stored.m[i] = bf16(want.m[i]);
      stored.v[i] = stored_second(want.v[i], old, t);
      want.compute[i] = bf16(want.p[i]);
    }
    const auto same = [](const std::vector<bf16>& a, const std::vector<bf16>& b) {
      return std::ranges::equal(a, b, [](bf16 x, bf16 y) {
        return x.bits == y.bits || (std::isnan(static_cast<float>(x)) && std::isnan(static_cast<float>(y)));
      });
    };
    for (const Isa isa : instruction_sets())
      for (const int threads : {1, 3}) {
        SCOPED_TRACE(format("{}, {} threads, rounds {}", device::name_of(isa), threads, rounds));
        Machine machine(threads, isa);
        State<float> x = initial;
        SmallMoments moments(initial);
        AdamW op{x.tensor(x.p),
                 SmallMoments::tensor(moments.m),
                 SmallMoments::tensor(moments.v),
                 x.tensor(x.g),
                 {reinterpret_cast<std::byte*>(x.compute.data()), {n}, DType::bf16, 0},
                 s};
        op.round_gradient = rounds;
        run(machine.ex, op);
        expect_same_bits(x.p, want.p, "p");
        EXPECT_TRUE(same(moments.m, stored.m)) << "m";
        EXPECT_TRUE(same(moments.v, stored.v)) << "v";
        EXPECT_EQ(std::memcmp(x.compute.data(), want.compute.data(), x.compute.size() * 2), 0) << "copy";
      }
  }
}

TEST_F(AdamBf16, StoredSecondMomentsHaveNoBias) {
  constexpr int64_t kElements = 20000, kUpdates = 1000;
  std::mt19937 engine(83);
  std::normal_distribution<float> normal;
  std::vector<float> draws(kElements + kUpdates * 7);
  for (float& draw : draws) draw = normal(engine);
  Machine machine(2, instruction_sets().back());
  for (const double beta2 : {0.95, 0.99, 0.999}) {
    State<float> wide(kElements, 1);
    for (std::vector<float>* x : {&wide.p, &wide.m, &wide.v}) std::ranges::fill(*x, 0.0f);
    SmallMoments small(wide);
    std::vector<float> small_p = wide.p;
    for (int64_t t = 1; t <= kUpdates; ++t) {
      AdamWScalars s = scalars(t, 0);
      s.beta2 = beta2;
      s.inv_sqrt_correction = 1 / std::sqrt(1 - std::pow(beta2, static_cast<double>(t)));
      s.t = t;
      std::copy_n(draws.begin() + 7 * t, kElements, wide.g.begin());
      run(machine.ex, AdamW{wide.tensor(wide.p), wide.tensor(wide.m), wide.tensor(wide.v), wide.tensor(wide.g), {}, s});
      run(machine.ex, AdamW{wide.tensor(small_p),
                            SmallMoments::tensor(small.m),
                            SmallMoments::tensor(small.v),
                            wide.tensor(wide.g),
                            {},
                            s});
    }
    double ratio = 0;
    for (size_t i = 0; i < wide.v.size(); ++i)
      ratio += std::sqrt(static_cast<double>(small.v[i]) / static_cast<double>(wide.v[i])) / kElements;
    EXPECT_NEAR(ratio, 1, 0.003) << "beta2 " << beta2;
  }
}

TEST_F(AdamBf16, StoreRoundsEveryPatternToNearestEven) {
  // Weights with zero moments and gradient keep their value: the copy is the rounding of p itself.
  constexpr int64_t kBatch = 1 << 16;
  AdamWScalars s = scalars(1, 0);
  s.negative_step = -0.0;
  for (const Isa isa : instruction_sets()) {
    Machine machine(2, isa);
    TestExec& ex = machine.ex;
    State<float> x(kBatch, 1);
    for (uint64_t batch = 0; batch < 64; ++batch) {
      for (uint64_t i = 0; i < kBatch; ++i)  // all upper halves; 64 lower halves, some next to a tie
        x.p[i] = std::bit_cast<float>(static_cast<uint32_t>(i << 16 | (batch < 8 ? 0x7ffcu + batch : batch * 1031)));
      std::fill(x.m.begin(), x.m.end(), 0.0f);
      std::fill(x.v.begin(), x.v.end(), 0.0f);
      std::fill(x.g.begin(), x.g.end(), 0.0f);
      Tensor compute{reinterpret_cast<std::byte*>(x.compute.data()), {kBatch}, DType::bf16, 0};
      run(ex, AdamW{x.tensor(x.p), x.tensor(x.m), x.tensor(x.v), x.tensor(x.g), compute, s});
      for (size_t i = 0; i < x.p.size(); ++i) {
        const uint32_t u = std::bit_cast<uint32_t>(x.p[i]);
        const uint32_t want = std::isnan(x.p[i]) ? 0x7fffu : (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
        ASSERT_EQ(x.compute[i].bits, want) << device::name_of(isa) << " pattern " << u;
      }
    }
  }
}

}  // namespace
}  // namespace trainer::ops::testing
