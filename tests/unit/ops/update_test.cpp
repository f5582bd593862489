// Every rule of the list has the bits of a plain loop over its formula on every device, instruction set and number of
// threads, whatever the types of states and gradients, and wherever a range is divided.
#include "ops/update.h"

#include <bit>

#include "unit/ops/op_fixture.h"

namespace trainer::ops::testing {
namespace {

/// A number with the operations that rules may use, so that all devices round alike: a rule that adds, compares or has
/// a constant does not compile here.
template <typename T>
struct Number {
  T value;
  friend Number operator*(Number a, Number b) { return {a.value * b.value}; }
  friend Number operator/(Number a, Number b) { return {a.value / b.value}; }
  friend Number operator-(Number a) { return {-a.value}; }
};
struct Canonical {
  template <typename N>
  static N fused(N a, N b, N c) {
    return {std::fma(a.value, b.value, c.value)};
  }
  template <typename N>
  static N square_root(N x) {
    return {std::sqrt(x.value)};
  }
  template <typename N>
  static N where_at_least(N x, N floor, N y) {
    return {x.value < floor.value ? 0 : y.value};
  }
};

/// Calls fn.template operator()<Rule>(id) for every rule.
template <typename F>
void each_rule(F&& fn) {
#define TRAINER_CALL(Rule)                             \
  {                                                    \
    SCOPED_TRACE(#Rule);                               \
    fn.template operator()<rules::Rule>(RuleId::Rule); \
  }
  TRAINER_RULES(TRAINER_CALL)
#undef TRAINER_CALL
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

enum class Gradient { wide, rounded, narrow };

/// Operands of an update. States may be stored in bf16.
template <typename T>
struct Operand {
  std::vector<T> p, g;
  std::vector<std::vector<T>> states;
  std::vector<std::vector<bf16>> small;  // the states in bf16
  std::vector<bf16> sent, compute;       // the gradient in bf16; the copy
  Operand(int64_t n, size_t count, uint64_t seed) : states(count), small(count) {
    std::mt19937_64 engine(seed);
    for (int64_t i = 0; i < n; ++i) {
      p.push_back(any_value<T>(engine, true));
      for (size_t s = 0; s < count; ++s) {
        states[s].push_back(any_value<T>(engine, s == 0));  // later ones may be squares
        small[s].push_back(bf16(static_cast<float>(states[s].back())));
      }
      g.push_back(any_value<T>(engine, true));
      sent.push_back(bf16(static_cast<float>(g.back())));
    }
    compute.assign(static_cast<size_t>(n), bf16(0.0f));
  }
  template <typename V>
  static Tensor tensor(std::vector<V>& x, int64_t first, int64_t n) {
    return {reinterpret_cast<std::byte*>(x.data() + first), {n}, DTypeOf<V>::value, 0};
  }
};

template <typename T>
struct Case {
  RuleId rule{};
  std::vector<double> scalars;
  bool small = false;
  Gradient gradient = Gradient::wide;
  bool copies = false;
  int64_t t = 7;
};
constexpr double kScale = 0.37;

template <typename T>
void update(TestExec& ex, const Case<T>& c, Operand<T>& x, int64_t first, int64_t n) {
  std::vector<Tensor> states;  // a CUDA device replaces them
  for (size_t s = 0; s < x.states.size(); ++s)
    states.push_back(c.small ? Operand<T>::tensor(x.small[s], first, n) : Operand<T>::tensor(x.states[s], first, n));
  run(ex, Update{.rule = c.rule,
                 .p = Operand<T>::tensor(x.p, first, n),
                 .states = states,
                 .g = c.gradient == Gradient::narrow ? Operand<T>::tensor(x.sent, first, n)
                                                     : Operand<T>::tensor(x.g, first, n),
                 .compute = c.copies ? Operand<T>::tensor(x.compute, first, n) : Tensor{},
                 .scalars = c.scalars,
                 .gradient_scale = kScale,
                 .round_gradient = c.gradient == Gradient::rounded,
                 .salt = salt_of(c.t)});
}

uint32_t mixed(uint32_t h) {
  h = (h ^ h >> 16) * 0x7feb352du;
  h = (h ^ h >> 15) * 0x846ca68bu;
  return h ^ h >> 16;
}
/// A stored state that is rounded stochastically, as ops/update.h defines it.
bf16 stored_second(float v, float old_p, int64_t t) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  const uint32_t h = mixed(bits ^ mixed(std::bit_cast<uint32_t>(old_p) + static_cast<uint32_t>(t) * 0x9e3779b9u));
  return bf16(std::bit_cast<float>((bits + (h & 0xffffu)) & 0xffff0000u));
}

/// The canonical arithmetic, one element at a time.
template <typename Rule, typename T>
void follow(const Case<T>& c, Operand<T>& x) {
  using N = Number<T>;
  N k[Rule::scalars];
  for (size_t i = 0; i < c.scalars.size(); ++i) k[i] = {static_cast<T>(c.scalars[i])};
  for (size_t i = 0; i < x.p.size(); ++i) {
    N s[Rule::states.size() + 1] = {};
    for (size_t j = 0; j < x.states.size(); ++j)
      s[j] = {c.small ? static_cast<T>(static_cast<float>(x.small[j][i])) : x.states[j][i]};
    const T g = c.gradient == Gradient::wide ? x.g[i] : static_cast<T>(static_cast<float>(x.sent[i]));
    const T old = x.p[i];
    x.p[i] = Rule::template element<Canonical>(k, N{old}, s, N{g * static_cast<T>(kScale)}).value;
    if (c.copies) x.compute[i] = bf16(static_cast<float>(x.p[i]));
    for (size_t j = 0; j < x.states.size(); ++j) {
      if (!c.small)
        x.states[j][i] = s[j].value;
      else if (Rule::states[j].narrow == rules::Narrow::nearest)
        x.small[j][i] = bf16(static_cast<float>(s[j].value));
      else
        x.small[j][i] = stored_second(static_cast<float>(s[j].value), static_cast<float>(old), c.t);
    }
  }
}

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

template <>
void expect_same_bits<bf16>(const std::vector<bf16>& got, const std::vector<bf16>& want, const char* name) {
  EXPECT_TRUE(std::ranges::equal(got, want, [](bf16 x, bf16 y) {
    return x.bits == y.bits || (std::isnan(static_cast<float>(x)) && std::isnan(static_cast<float>(y)));
  })) << name;
}
template <typename T>
void expect_same(const Operand<T>& got, const Operand<T>& want) {
  expect_same_bits(got.p, want.p, "p");
  for (size_t s = 0; s < want.states.size(); ++s) {
    expect_same_bits(got.states[s], want.states[s], "state");
    expect_same_bits(got.small[s], want.small[s], "bf16 state");
  }
  expect_same_bits(got.compute, want.compute, "bf16 copy");
}

/// Scalars of all sizes, the decay's among them, without meaning.
template <typename Rule>
std::vector<double> any_scalars(double floor) {
  std::vector<double> all;
  for (int i = 0; i < Rule::scalars; ++i) all.push_back(0.9 - 0.07 * i);
  all[Rule::nwd] = -0.02;
  all[Rule::floor] = floor;
  return all;
}

struct Rules : DeviceTest {
  /// Expects a rule's bits for operands of type T on every device.
  template <typename Rule, typename T>
  void expect_bits(RuleId id, int64_t n, uint64_t seed) {
    for (const double floor : {-HUGE_VAL, 0.0})
      for (const bool small : {false, true})
        for (const Gradient gradient : {Gradient::wide, Gradient::rounded, Gradient::narrow}) {
          if (sizeof(T) == 8 && (small || gradient != Gradient::wide)) continue;
          SCOPED_TRACE(format("seed {}, floor {}, {} states, gradient {}", seed, floor, small ? "bf16" : "wide",
                              static_cast<int>(gradient)));
          const Case<T> c{id, any_scalars<Rule>(floor), small, gradient, sizeof(T) == 4};
          const Operand<T> initial(n, Rule::states.size(), seed);
          Operand<T> want = initial;
          follow<Rule>(c, want);
          for (const Isa isa : instruction_sets())
            for (const int threads : {1, 3}) {
              SCOPED_TRACE(format("{}, {} threads", device::name_of(isa), threads));
              Machine machine(threads, isa);
              Operand<T> x = initial;
              update(machine.ex, c, x, 0, n);
              expect_same(x, want);
            }
        }
  }
};

TEST_F(Rules, OfEveryKindRoundAsTheScalarLoop) {
  const int64_t n = (int64_t{1} << 16) + 13;
  each_rule([&]<typename Rule>(RuleId id) {
    if (!on_cuda()) expect_bits<Rule, double>(id, n, 71);
    expect_bits<Rule, float>(id, n, 72);
  });
}

TEST_F(Rules, GiveTheSameBitsInPartsOfAnySize) {
  const int64_t n = 333;
  each_rule([&]<typename Rule>(RuleId id) {
    for (const bool small : {false, true}) {
      const Case<float> c{id, any_scalars<Rule>(0), small, Gradient::wide, true};
      const Operand<float> initial(n, Rule::states.size(), 73);
      Operand<float> want = initial;
      follow<Rule>(c, want);
      for (const Isa isa : instruction_sets())
        for (const int64_t part : {int64_t{1}, int64_t{7}, int64_t{64}, n}) {
          SCOPED_TRACE(format("{}, parts of {}", device::name_of(isa), part));
          Machine machine(2, isa);
          Operand<float> x = initial;
          for (int64_t first = 0; first < n; first += part) update(machine.ex, c, x, first, std::min(part, n - first));
          expect_same(x, want);
        }
    }
  });
}

TEST_F(Rules, DecayEverythingWithoutAFloorAndOnlyWhatMovesTowardsZeroWithOne) {
  each_rule([&]<typename Rule>(RuleId id) {
    const int64_t n = 4096;
    const Operand<float> initial(n, Rule::states.size(), 74);
    const auto after = [&](double floor, double decay) {
      Case<float> c{id, any_scalars<Rule>(floor)};
      c.scalars[Rule::nwd] = decay;
      Machine machine(1, instruction_sets().back());
      Operand<float> x = initial;
      update(machine.ex, c, x, 0, n);
      return x.p;
    };
    const std::vector<float> plain = after(-HUGE_VAL, -0.02), none = after(-HUGE_VAL, 0), cautious = after(0, -0.02);
    int64_t decayed = 0, kept = 0;
    for (size_t i = 0; i < plain.size(); ++i) {
      if (std::isnan(plain[i]) || plain[i] == none[i]) continue;
      EXPECT_TRUE(cautious[i] == plain[i] || cautious[i] == none[i]) << i;
      (cautious[i] == plain[i] ? decayed : kept) += 1;
    }
    EXPECT_GT(decayed, n / 10);
    EXPECT_GT(kept, n / 10);
    expect_same_bits(after(0, 0), none, "without decay the floor changes nothing");
  });
}

TEST_F(Rules, DecayWhereTheUpdateTimesTheWeightIsNotBelowZero) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  struct {
    float p, g;
    bool decays;
  } const cases[] = {{0.5f, 0.0f, true},       {0.5f, -0.0f, true},      {-0.5f, 0.0f, true}, {1e-30f, -1e-30f, true},
                     {1e-20f, -1e-19f, false}, {0.5f, -8 * tiny, false}, {0.5f, 0.25f, true}, {-0.5f, 0.25f, false}};
  for (const Isa isa : instruction_sets()) {
    Machine machine(1, isa);
    const auto n = static_cast<int64_t>(std::size(cases));
    Case<float> c{RuleId::Sgd, {0, -0.125, -0.25, 0}};
    Operand<float> x(n, 0, 1);
    for (size_t i = 0; i < std::size(cases); ++i) x.p[i] = cases[i].p, x.g[i] = cases[i].g;
    update(machine.ex, c, x, 0, n);
    for (size_t i = 0; i < std::size(cases); ++i) {
      const auto [p, g, decays] = cases[i];
      EXPECT_EQ(x.p[i], std::fma(-0.125f, g * static_cast<float>(kScale), decays ? 0.75f * p : p)) << i;
    }
  }
}

TEST_F(Rules, WriteALargeCopyAlikeWithinAndPastTheCaches) {
  const int64_t n = (int64_t{1} << 19) + 77;  // more than a core's own caches
  each_rule([&]<typename Rule>(RuleId id) {
    const Case<float> c{id, any_scalars<Rule>(0)};
    const Operand<float> initial(n, Rule::states.size(), 76);
    for (const Isa isa : instruction_sets())
      for (const int64_t offset : {0, 1}) {  // only whole cache lines are written past the caches
        SCOPED_TRACE(format("{}, {} elements past a line", device::name_of(isa), offset));
        Machine machine(2, isa);
        Operand<float> x = initial;
        std::vector<bf16> room(static_cast<size_t>(n) + 64, bf16(3.0f));
        const auto past_line = static_cast<int64_t>(reinterpret_cast<uintptr_t>(room.data()) % 64 / sizeof(bf16));
        bf16* const copy = room.data() + (32 - past_line) % 32 + offset;
        std::vector<Tensor> states;
        for (std::vector<float>& s : x.states) states.push_back(Operand<float>::tensor(s, 0, n));
        run(machine.ex, Update{.rule = id,
                               .p = Operand<float>::tensor(x.p, 0, n),
                               .states = states,
                               .g = Operand<float>::tensor(x.g, 0, n),
                               .compute = {reinterpret_cast<std::byte*>(copy), {n}, DType::bf16, 0},
                               .scalars = c.scalars});
        int64_t wrong = 0;
        for (int64_t i = 0; i < n; ++i) wrong += copy[i].bits != bf16(x.p[static_cast<size_t>(i)]).bits;
        EXPECT_EQ(wrong, 0);
        EXPECT_EQ(copy[n].bits, bf16(3.0f).bits) << "the element behind the copy";
      }
  });
}

struct Adam : DeviceTest {};

std::vector<double> adamw_scalars(int64_t t, double beta2 = 0.95) {
  const double lr = 3e-4, b1 = 0.9, td = static_cast<double>(t);
  return {b1, beta2,    1 - b1, 1 - beta2, 1 / std::sqrt(1 - std::pow(beta2, td)), 1e-8, -lr / (1 - std::pow(b1, td)),
          0,  -HUGE_VAL};
}

TEST_F(Adam, KeepsSubnormalsNegativeZeroAndOddTails) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  for (const Isa isa : instruction_sets())
    for (int64_t n = 1; n <= 35; ++n) {
      Machine machine(2, isa);
      Case<float> c{RuleId::AdamW, adamw_scalars(1)};
      c.scalars[rules::AdamW::nstep] = -0.0;
      Operand<float> x(n, 2, 1);
      std::ranges::fill(x.p, -0.0f);
      std::ranges::fill(x.states[0], tiny * 100);
      std::ranges::fill(x.states[1], 0.0f);
      std::ranges::fill(x.g, 0.0f);
      update(machine.ex, c, x, 0, n);
      for (const float m : x.states[0]) EXPECT_EQ(m, tiny * 90);
      for (const float p : x.p) EXPECT_TRUE(p == 0 && std::signbit(p)) << n;
    }
}

TEST_F(Adam, StoredSecondMomentsHaveTheBitsOfTheDefinition) {
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

TEST_F(Adam, StoredSecondMomentsHaveNoBias) {
  constexpr int64_t kElements = 20000, kUpdates = 1000;
  std::mt19937 engine(83);
  std::normal_distribution<float> normal;
  std::vector<float> draws(kElements + kUpdates * 7);
  for (float& draw : draws) draw = normal(engine);
  Machine machine(2, instruction_sets().back());
  for (const double beta2 : {0.95, 0.99, 0.999}) {
    Operand<float> wide(kElements, 2, 1);
    for (std::vector<float>* x : {&wide.p, &wide.states[0], &wide.states[1]}) std::ranges::fill(*x, 0.0f);
    for (std::vector<bf16>& x : wide.small) std::ranges::fill(x, bf16(0.0f));
    Operand<float> small = wide;
    for (int64_t t = 1; t <= kUpdates; ++t) {
      Case<float> c{RuleId::AdamW, adamw_scalars(t, beta2)};
      c.t = t;
      std::copy_n(draws.begin() + 7 * t, kElements, wide.g.begin());
      small.g = wide.g;
      update(machine.ex, c, wide, 0, kElements);
      c.small = true;
      update(machine.ex, c, small, 0, kElements);
    }
    double ratio = 0;
    for (size_t i = 0; i < wide.p.size(); ++i)
      ratio += std::sqrt(static_cast<double>(small.small[1][i]) / static_cast<double>(wide.states[1][i])) / kElements;
    EXPECT_NEAR(ratio, 1, 0.003) << "beta2 " << beta2;
  }
}

TEST_F(Adam, StoreRoundsEveryPatternToNearestEven) {
  // Weights with zero moments and gradient keep their value: the copy is the rounding of p itself.
  constexpr int64_t kBatch = 1 << 16;
  Case<float> c{RuleId::AdamW, adamw_scalars(1)};
  c.scalars[rules::AdamW::nstep] = -0.0;
  c.copies = true;
  for (const Isa isa : instruction_sets()) {
    Machine machine(2, isa);
    Operand<float> x(kBatch, 2, 1);
    for (uint64_t batch = 0; batch < 64; ++batch) {
      for (uint64_t i = 0; i < kBatch; ++i)  // all upper halves; 64 lower halves, some next to a tie
        x.p[i] = std::bit_cast<float>(static_cast<uint32_t>(i << 16 | (batch < 8 ? 0x7ffcu + batch : batch * 1031)));
      for (std::vector<float>* zero : {&x.states[0], &x.states[1], &x.g}) std::ranges::fill(*zero, 0.0f);
      update(machine.ex, c, x, 0, kBatch);
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
