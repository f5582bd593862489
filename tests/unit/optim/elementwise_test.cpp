// The rules of the table follow their golden values, and the classes of parameters their learning rates.
#include "optim/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "config/config.h"
#include "optim/make.h"
#include "rigs/rule_cases.h"

namespace trainer::optim {
namespace {

/// A store with a tensor of each class: P₀[i, j] = cos(2i − j)/10, and gradients G_t[i, j] = sin(t + 3i + 7j)/(1 + i +
/// j).
struct Rig {
  Rig(const config::Config& config, int64_t rows, int64_t cols, DType compute = DType::f64)
      : device(2), store(device, compute), rules(make_rules(config, compute)) {
    const params::Init init{params::Init::Kind::normal, 0.02};
    const int embedding = store.add_group("embedding"), block = store.add_group("blocks.0"),
              head = store.add_group("head");
    store.add_slot(embedding, {{"table", store.replicated({rows, cols}), init}});
    store.add_slot(block, {{"gain", store.replicated({cols}), init}});
    store.add_slot(block, {{"hidden", store.replicated({rows, cols}), init, 0, true}});
    store.add_slot(head, {{"head", store.replicated({rows, cols}), init}});
    keep_states(store, rules);
    store.allocate(true);
    store.initialize(3);
    optimizer = make_optimizer(store, rules);
    each([&](const params::Group& group, double i, double j, int64_t at) {
      put(group.master, at, std::cos(2 * i - j) / 10);
    });
    store.refresh_compute();
  }
  static void put(const Tensor& to, int64_t at, double value) {
    to.dtype == DType::f64 ? to.as<double>()[at] = value : to.as<float>()[at] = static_cast<float>(value);
  }
  static double get(const Tensor& from, int64_t at) {
    return from.dtype == DType::f64   ? from.as<double>()[at]
           : from.dtype == DType::f32 ? static_cast<double>(from.as<float>()[at])
                                      : static_cast<double>(from.as<bf16>()[at]);
  }
  template <typename F>
  void each(F&& fn, std::string_view only = {}) const {
    for (const params::Param& param : store.params())
      for (const mesh::Run& run : param.runs)
        for (int64_t k = 0; k < run.length && (only.empty() || only == param.name); ++k) {
          const int64_t at = run.global + k, cols = param.shape[-1];
          fn(store.groups()[static_cast<size_t>(param.group)], static_cast<double>(at / cols),
             static_cast<double>(at % cols), run.local + k * run.stride);
        }
  }
  void steps(double lr = 0.02) {
    for (int64_t t = 1; t <= 3; ++t) {
      each([&](const params::Group& group, double i, double j, int64_t at) {
        put(group.grad, at, std::sin(static_cast<double>(t) + 3 * i + 7 * j) / (1 + i + j));
      });
      optimizer->step(ex, make_update(rules, lr, t, 1));
    }
  }
  /// Returns the weights of a tensor, or a state of it.
  std::vector<double> values(std::string_view param, std::string_view state = {}) const {
    std::vector<double> all;
    each(
        [&](const params::Group& group, double, double, int64_t at) {
          all.push_back(state.empty() ? get(group.master, at) : get(group.state(state, {at, 1}), 0));
        },
        param);
    return all;
  }

  device::CpuDevice device;
  Arena arena{device, Arena::Mode::heap};
  Meter meter;
  Exec ex{device, arena, meter};
  params::ParamStore store;
  Rules rules;
  std::unique_ptr<Optimizer> optimizer;
};

config::Config config_of(const tests::RuleCase& rule) {
  config::Config c = config::defaults();
  c.model.d_model = 1024;
  c.optim.weight_decay = 0.1;
  rule.set(c);
  return c;
}

struct State {
  const char* name;
  double first, last, norm;
};
struct Golden {
  const char* rule;
  int64_t rows, cols;
  double first, inner, last, norm;  // p[0, 0], p[1, 2], p[rows − 1, cols − 1]
  std::vector<State> states = {};
};
const std::vector<State> kSums[] = {{{"momentum", 1.64107918989738, 0.180490498944643, 2.3004799270791}},
                                    {{"momentum", 1.64107918989738, 0.0788068021225961, 2.27640725725863}}};
const std::vector<State> kMoments[] = {{{"m", 0.164107918989738, 0.0180490498944643, 0.23004799270791},
                                        {"v", 0.0722215918288466, 0.00088967570907451, 0.0784644948511557}},
                                       {{"m", 0.164107918989738, 0.00788068021225961, 0.227640725725863},
                                        {"v", 0.0722215918288466, 0.000855621428299548, 0.0784638362211079}}};
/// From an independent program in double precision.
const Golden kGoldens[] = {
    {"sgd", 4, 6, 0.06166705306431, 0.0978285171788116, 0.0495487833388209, 0.341620171362775},
    {"sgd", 6, 4, 0.06166705306431, 0.0978285171788116, 0.073564111110508, 0.33793371039952},
    {"sgd with momentum", 4, 6, 0.0165516846564707, 0.103568251810005, 0.0445151768643918, 0.353060613141142, kSums[0]},
    {"sgd with momentum", 6, 4, 0.0165516846564707, 0.103568251810005, 0.0754142447073124, 0.339949588453624, kSums[1]},
    {"sgd with Nesterov's", 4, 6, -0.0128975100248664, 0.101578864527816, 0.0412764150963371, 0.363889972176955,
     kSums[0]},
    {"sgd with Nesterov's", 6, 4, -0.0128975100248664, 0.101578864527816, 0.0739920220019121, 0.344743115350896,
     kSums[1]},
    {"adamw", 4, 6, 0.0424954039625516, 0.124957767921976, -0.00304602465284318, 0.455637353771542, kMoments[0]},
    {"adamw", 6, 4, 0.0424954039625516, 0.124957767921976, 0.0933303299013349, 0.377515902773767, kMoments[1]},
    {"adamw, cautious decay", 4, 6, 0.0424954039625516, 0.125396488719849, -0.00304602465284318, 0.457470494238173,
     kMoments[0]},
    {"adamw, cautious decay", 6, 4, 0.0424954039625516, 0.125396488719849, 0.093670906717906, 0.378892290227359,
     kMoments[1]}};

double norm_of(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

TEST(ElementwiseRules, FollowTheGoldens) {
  std::set<ops::RuleId> seen;
  for (const tests::RuleCase& rule : tests::rule_cases())
    for (const Golden& golden : kGoldens) {
      if (golden.rule != rule.name) continue;
      for (const auto& [compute, tolerance] : {std::pair{DType::f64, 1e-12}, {DType::f32, 2e-6}}) {
        SCOPED_TRACE(format("{} {}x{}, {}", golden.rule, golden.rows, golden.cols, name_of(compute)));
        Rig rig(config_of(rule), golden.rows, golden.cols, compute);
        seen.insert(rig.rules.front()->elementwise()->row().id);
        rig.steps();
        const auto near = [&](double got, double want) { EXPECT_NEAR(got / want, 1, tolerance) << want; };
        for (const char* param : {"table", "hidden", "head"}) {
          const std::vector<double> p = rig.values(param);
          near(p[0], golden.first);
          near(p[static_cast<size_t>(golden.cols + 2)], golden.inner);
          near(p.back(), golden.last);
          near(norm_of(p), golden.norm);
          EXPECT_EQ(rig.rules.front()->states().size(), golden.states.size());
          for (const State& state : golden.states) {
            const std::vector<double> s = rig.values(param, state.name);
            near(s[0], state.first);
            near(s.back(), state.last);
            near(norm_of(s), state.norm);
          }
        }
      }
    }
  EXPECT_EQ(seen.size(), ops::kRules) << "a rule has no golden values";
}

TEST(ElementwiseRules, AreSelectedByAConfigurationEach) { tests::expect_every_row_in(tests::rule_cases()); }

TEST(ElementwiseRules, OnVectorsDoNotDecay) {
  for (const tests::RuleCase& rule : tests::rule_cases()) {
    SCOPED_TRACE(rule.name);
    config::Config c = config_of(rule);
    Rig usual(c, 4, 6);
    c.optim.weight_decay = 0;
    Rig without(c, 4, 6);
    usual.steps();
    without.steps();
    EXPECT_EQ(usual.values("gain"), without.values("gain"));
    EXPECT_NE(usual.values("table"), without.values("table"));
  }
}

TEST(ElementwiseRules, WithStatesInBf16StayClose) {
  for (const tests::RuleCase& rule : tests::rule_cases()) {
    SCOPED_TRACE(rule.name);
    config::Config c = config_of(rule);
    Rig wide(c, 4, 6, DType::f32);
    c.optim.moments = config::Moments::bf16;
    Rig small(c, 4, 6, DType::f32);
    wide.steps();
    small.steps();
    for (const params::StateSpec& state : small.rules.front()->states()) EXPECT_EQ(state.type, DType::bf16);
    const std::vector<double> a = wide.values("hidden"), b = small.values("hidden");
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(b[i], a[i], 1e-3);
  }
}

TEST(Classes, HaveTheirOwnLearningRates) {
  const std::pair<const char*, double config::Optim::*> classes[] = {
      {"table", &config::Optim::embedding_lr}, {"head", &config::Optim::head_lr}, {"gain", &config::Optim::vector_lr}};
  for (const tests::RuleCase& rule : tests::rule_cases()) {
    SCOPED_TRACE(rule.name);
    const config::Config c = config_of(rule);
    Rig initial(c, 4, 6), usual(c, 4, 6), half(c, 4, 6);
    usual.steps();
    half.steps(0.01);
    for (const auto& [changed, ratio] : classes) {
      config::Config frozen = c, slow = c;
      frozen.optim.*ratio = 0;
      slow.optim.*ratio = 0.5;
      Rig none(frozen, 4, 6), less(slow, 4, 6);
      none.steps();
      less.steps();
      for (const char* param : {"table", "gain", "hidden", "head"}) {
        const bool is_changed = std::string_view(param) == changed;
        EXPECT_EQ(none.values(param), (is_changed ? initial : usual).values(param)) << changed << ", " << param;
        EXPECT_EQ(less.values(param), (is_changed ? half : usual).values(param)) << changed << ", " << param;
      }
    }
  }
}

TEST(Classes, OfAWiderModelLearnAsMupSays) {
  config::Config c = config_of(tests::rule_cases().front());
  c.optim.name = config::OptimizerName::adamw;
  Rig usual(c, 4, 6), quarter(c, 4, 6);
  EXPECT_EQ(rates_text(c), "");
  c.optim.mup_base_width = 1024;
  Rig equal(c, 4, 6);
  c.optim.mup_base_width = 256;
  Rig wider(c, 4, 6);
  EXPECT_EQ(
      rates_text(c),
      "learning rates relative to the schedule's: 0.25 in the blocks' matrices, 1 in embeddings, 0.25 in the head, "
      "1 in gains and biases");
  usual.steps();
  quarter.steps(0.005);
  equal.steps();
  wider.steps();
  for (const char* param : {"table", "gain", "hidden", "head"}) {
    const bool slower = std::string_view(param) == "hidden" || std::string_view(param) == "head";
    EXPECT_EQ(equal.values(param), usual.values(param)) << param;
    EXPECT_EQ(wider.values(param), (slower ? quarter : usual).values(param)) << param;
  }
}

}  // namespace
}  // namespace trainer::optim
