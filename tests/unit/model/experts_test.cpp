// A layer with experts compared with values computed independently of this program: losses, outputs and gradients in
// double precision. Weights and rows are formulas (wave), so that nothing has to be stored.
#include "parallel/experts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <numeric>

#include "config/families.h"
#include "parallel/strategy.h"

namespace trainer::parallel {
namespace {

using config::Recompute;
using Values = std::vector<double>;

constexpr int64_t kExperts = 5, kChosen = 2, kWidth = 8, kExpertWidth = 6, kSequences = 2, kLength = 6;
constexpr int64_t kRows = kSequences * kLength;
constexpr double kAlpha = 0.1, kZeta = 0.01;

/// Returns a matrix [rows, cols]; `number` distinguishes tensors.
Values wave(double scale, int64_t number, int64_t rows, int64_t cols) {
  Values all;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j)
      all.push_back(scale * std::sin(static_cast<double>(1 + 37 * i + 11 * j + 3 * i * j + 101 * number)));
  return all;
}

/// Returns the tensor of all experts, [E, rows, cols].
Values waves(double scale, int64_t first, int64_t rows, int64_t cols) {
  Values all;
  for (int64_t e = 0; e < kExperts; ++e)
    for (const double value : wave(scale, first + 3 * e, rows, cols)) all.push_back(value);
  return all;
}

/// Feature 0 of the rows is 1, so row 0 of the router acts as a bias: expert 3 is never chosen.
Values rows_of_layer() {
  Values x = wave(1, 0, kRows, kWidth);
  for (int64_t r = 0; r < kRows; ++r) x[static_cast<size_t>(r * kWidth)] = 1;
  return x;
}
Values router() {
  Values w = wave(0.6, 1, kWidth, kExperts);
  for (size_t e = 0; const double bias : {0.9, 0.1, 0.3, -6.0, -0.3}) w[e++] = bias;
  return w;
}

std::map<std::string, Values> weights(int64_t shared) {
  std::map<std::string, Values> all = {{"router", router()},
                                       {"experts.gate", waves(1, 2, kWidth, kExpertWidth)},
                                       {"experts.up", waves(1, 3, kWidth, kExpertWidth)},
                                       {"experts.down", waves(0.3, 4, kExpertWidth, kWidth)}};
  if (shared == 0) return all;
  all["shared.gate"] = wave(0.3, 50, kWidth, shared);
  all["shared.up"] = wave(0.3, 51, kWidth, shared);
  all["shared.down"] = wave(0.3, 52, shared, kWidth);
  all["shared_gate"] = wave(0.3, 53, kWidth, 1);
  return all;
}

config::Model model_of(bool norm_topk, int64_t shared) {
  config::Model m;
  set_family(m, config::Arch::llama);
  m.n_layer = m.n_head = m.n_kv_head = 1;
  m.d_model = kWidth;
  m.seq_len = kLength;
  m.n_expert = kExperts;
  m.experts_per_token = kChosen;
  m.d_expert = kExpertWidth;
  m.d_shared = shared;
  m.norm_topk = norm_topk;
  m.init_std = 0.02;
  return m;
}

Tensor view(Values& values, Shape shape) {
  return {reinterpret_cast<std::byte*>(values.data()), shape, DType::f64, shape[-1]};
}

Values values_of(const Tensor& x) { return {x.as<double>(), x.as<double>() + x.count()}; }

struct Variant {
  bool norm_topk = true;
  int64_t shared = 0;
  bool per_sequence = false;
  Recompute recompute = Recompute::none;
};

class Layer {
 public:
  explicit Layer(const Variant& variant)
      : variant_(variant),
        model_(model_of(variant.norm_topk, variant.shared)),
        store_(device_, DType::f64),
        strategy_(store_, 1),
        group_(store_.add_group("blocks.0")),
        mlp_(strategy_.mlp({0, group_, model_, variant.recompute})),
        sink_((store_.allocate(/*training=*/true), store_)) {
    sink_.prepare(device_);
    routing.balance = kAlpha * kExperts / kRows;
    routing.z_loss = 2 * kZeta / kRows;
    routing.per_sequence = variant.per_sequence;
    for (const auto& [name, values] : weights(variant.shared)) set(name, values);
    // Memory that is not written must not be read.
    const Tensor gradient = store_.groups()[0].grad;
    std::memset(gradient.data, 0xff, static_cast<size_t>(gradient.bytes()));
  }

  /// Copies values to a parameter.
  void set(const std::string& name, const Values& values) {
    for_elements(name, [&](int64_t global, int64_t local) {
      store_.groups()[0].master.tensor().as<double>()[local] = values.at(static_cast<size_t>(global));
    });
    store_.weights_changed();
  }
  Values gradient(const std::string& name) {
    Values values(weights(variant_.shared).at(name).size());
    for_elements(name, [&](int64_t global, int64_t local) {
      values.at(static_cast<size_t>(global)) = store_.groups()[0].grad.as<double>()[local];
    });
    return values;
  }

  /// Runs a step with `micro_batches` equal micro-batches. Returns the objective of one: Σ y·dy + α·balance + ζ·z.
  double step(int64_t micro_batches = 1) {
    routing.begin_step();
    sink_.begin_step();
    for (int64_t micro = 0; micro < micro_batches; ++micro) {
      forward(/*keep=*/true);
      mlp_->forget(saved_, variant_.recompute);
      if (variant_.recompute == Recompute::full) mlp_->forward(ex_, batch_, input(), saved_);
      sink_.begin_micro(micro + 1 == micro_batches);
      const Scratch d = mlp_->backward(ex_, batch_, view(dy, {kRows, kWidth}), saved_, sink_);
      dx = values_of(mlp_->input_gradient(ex_, batch_, d, input(), saved_, sink_));
      saved_ = {};
      sink_.end_group(ex_, group_);
      sink_.end_micro(ex_);
    }
    terms = routing.terms();
    const double rows = static_cast<double>(kRows * micro_batches);
    for (double RouterTerms::*term : {&RouterTerms::balance, &RouterTerms::z_loss, &RouterTerms::entropy})
      terms.*term /= rows;
    return std::inner_product(y.begin(), y.end(), dy.begin(), 0.0) + kAlpha * terms.balance + kZeta * terms.z_loss;
  }
  void evaluate() {
    batch_.routing = nullptr;
    forward(/*keep=*/false);
    saved_ = {};
    batch_.routing = &routing;
  }

  Values x = rows_of_layer(), dy = wave(0.5, 60, kRows, kWidth), y, dx;
  RouterTerms terms;  // means over rows
  device::CpuDevice device_{2};
  Routing routing{device_, DType::f64, 1, kExperts};
  std::vector<int32_t> choices;  // [kRows, k] of the last forward pass with routing
  Values row_weights;

 private:
  Tensor input() { return view(x, {kRows, kWidth}); }
  void forward(bool keep) {
    batch_.keep = keep;
    mlp_->forward(ex_, batch_, input(), saved_);
    const Tensor chosen = saved_.routed.choices;
    choices.assign(chosen.as<int32_t>(), chosen.as<int32_t>() + chosen.count());
    row_weights = values_of(saved_.routed.weights);
    y = values_of(mlp_->output(ex_, batch_, {}, saved_));
  }
  template <typename F>
  void for_elements(const std::string& name, F&& visit) {
    for (const params::Param& param : store_.params())
      if (param.name == "blocks.0.mlp." + name + ".weight")
        for (const mesh::Run& run : param.runs)
          for (int64_t i = 0; i < run.length; ++i) visit(run.global + i, run.local + i * run.stride);
  }

  Variant variant_;
  Arena arena_{device_, Arena::Mode::heap};
  Meter meter_;
  Exec ex_{device_, arena_, meter_};
  config::Model model_;
  ParamStore store_;
  Strategy strategy_;
  int group_;
  std::unique_ptr<Mlp> mlp_;
  GradSink sink_;
  Mlp::Saved saved_;
  Batch batch_{.sequences = kSequences, .seq_len = kLength, .routing = &routing};
};

double norm_of(const Values& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

void expect_near(double actual, double expected, const std::string& what) {
  EXPECT_NEAR(actual, expected, 1e-12 * std::max(1.0, std::abs(expected))) << what;
}

/// An element, and the norm of the tensor.
struct Golden {
  std::string name;
  int64_t at;
  double value, norm = -1;  // -1: not compared
};
void expect_golden(const Values& values, const Golden& golden) {
  expect_near(values.at(static_cast<size_t>(golden.at)), golden.value, golden.name);
  if (golden.norm >= 0) expect_near(norm_of(values), golden.norm, "norm of " + golden.name);
}

constexpr int64_t kInner = kExpertWidth * kWidth;
// Element (1, 1) of a matrix, or of expert 1.
constexpr int64_t kRouterAt = kExperts + 1, kUpAt = kInner + kExpertWidth + 1, kDownAt = kInner + kWidth + 1;

TEST(Experts, OfMixtralAndQwen3FollowIndependentValues) {
  Layer layer({.norm_topk = true});
  expect_near(layer.step(), -0.028777148421865, "objective");
  EXPECT_EQ(layer.choices,
            (std::vector<int32_t>{2, 0, 4, 0, 0, 2, 0, 2, 0, 2, 4, 2, 1, 0, 0, 1, 0, 2, 2, 1, 1, 0, 0, 2}));
  EXPECT_EQ(std::vector<int64_t>(layer.routing.counts().begin(), layer.routing.counts().end()),
            (std::vector<int64_t>{10, 4, 8, 0, 2}));
  expect_near(layer.terms.balance, 1.481884209097464, "balance");
  expect_near(layer.terms.z_loss, 3.928073549438197, "z-loss");
  expect_near(layer.terms.entropy, 1.132074090485416, "entropy");
  expect_near(layer.row_weights[0], 0.6606968243802219, "weight");
  expect_near(layer.row_weights[1], 0.3393031756197781, "weight");
  expect_golden(layer.y, {"y", 1, -9.526791824057852e-01, 1.084778535962360e+01});
  expect_golden(layer.dx, {"dx", kWidth + 1, -1.601188640837121e-01, 5.178900795224457});
  for (const Golden& golden : {Golden{"router", kRouterAt, 5.874829734005433e-03, 2.687555536570359},
                               Golden{"experts.gate", kUpAt, 2.020783987777525e-03, 2.833563096488223},
                               Golden{"experts.up", kUpAt, 9.319211662000010e-02, 2.291393817660401},
                               Golden{"experts.down", kDownAt, 1.926526526786268e-02, 1.627739094592439e+01}})
    expect_golden(layer.gradient(golden.name), golden);
}

TEST(Experts, OfOlmoeAndQwen2FollowIndependentValues) {
  for (const int64_t shared : {0, 10}) {
    Layer layer({.norm_topk = false, .shared = shared});
    expect_near(layer.step(), shared == 0 ? 0.261772358109153 : 0.257474767383718, "objective");
    expect_near(layer.row_weights[0], 0.4721959095343987, "weight");
    expect_near(layer.row_weights[1], 0.2424978684739189, "weight");
    for (const Golden& golden : {Golden{"router", kRouterAt, 1.379441969036220e-01, 2.565745977542097},
                                 Golden{"experts.gate", kUpAt, 4.385018852272159e-04, 2.264449358933849},
                                 Golden{"experts.up", kUpAt, 7.494723991191030e-02, 1.876371966911596},
                                 Golden{"experts.down", kDownAt, 1.787959506348723e-02, 1.300771984667965e+01}})
      expect_golden(layer.gradient(golden.name), golden);
    if (shared == 0) {
      expect_golden(layer.y, {"y", 1, -6.808738841034655e-01, 8.651944904106257});
      expect_golden(layer.dx, {"dx", kWidth + 1, -1.268934560564300e-01, 4.500836085124988});
      continue;
    }
    expect_golden(layer.y, {"y", 1, -7.202908446763325e-01, 8.615440439513613});
    expect_golden(layer.dx, {"dx", kWidth + 1, -1.492686977859093e-01, 4.501011062470543});
    for (const Golden& golden : {Golden{"shared.gate", shared + 1, 2.565145785982650e-02},
                                 Golden{"shared.up", shared + 1, -9.179758363653034e-04},
                                 Golden{"shared.down", kWidth + 1, -5.386678780797538e-02},
                                 Golden{"shared_gate", 1, -2.170547307772662e-02, 5.836852003329421e-02}})
      expect_golden(layer.gradient(golden.name), golden);
  }
}

TEST(Experts, BalanceSequencesIfRequested) {
  Layer layer({.per_sequence = true});
  expect_near(layer.step(), -0.022023457818391, "objective");
  expect_near(layer.terms.balance, 1.549421115132206, "balance");
  expect_golden(layer.gradient("router"), {"router", kRouterAt, 8.920376791669795e-03, 2.687382926384630});
}

// Expert 3 computes no row; the gradients' memory is NaN before the step.
TEST(Experts, WithoutRowsHaveGradientsOfExactlyZero) {
  for (const int64_t micro_batches : {1, 2}) {
    Layer layer({});
    layer.step(micro_batches);
    for (const char* name : {"experts.gate", "experts.up", "experts.down"}) {
      const Values all = layer.gradient(name);
      for (int64_t i = 0; i < kExperts * kInner; ++i) {
        const double value = all.at(static_cast<size_t>(i));
        if (i / kInner == 3)
          EXPECT_EQ(value, 0) << name << " " << i;
        else
          EXPECT_TRUE(std::isfinite(value)) << name << " " << i;
      }
    }
  }
}

TEST(Experts, SumGradientsOfMicroBatches) {
  Layer once({.norm_topk = false, .shared = 10}), twice({.norm_topk = false, .shared = 10});
  once.step();
  twice.step(2);
  for (const auto& [name, values] : weights(10)) {
    const Values one = once.gradient(name), two = twice.gradient(name);
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(two[i], 2 * one[i], 1e-12) << name << " " << i;
  }
}

TEST(Experts, HaveTheSameBitsWithRecomputationAndChooseOnce) {
  for (const int64_t shared : {0, 10}) {
    Layer kept({.shared = shared});
    const double objective = kept.step();
    for (const Recompute mode : {Recompute::selective, Recompute::full}) {
      Layer layer({.shared = shared, .recompute = mode});
      EXPECT_EQ(layer.step(), objective);
      EXPECT_EQ(layer.dx, kept.dx);
      for (const auto& [name, values] : weights(shared)) EXPECT_EQ(layer.gradient(name), kept.gradient(name)) << name;
      EXPECT_TRUE(std::ranges::equal(layer.routing.counts(), kept.routing.counts()));
    }
  }
}

TEST(Experts, CountNothingInEvaluation) {
  Layer layer({.shared = 10});
  layer.step();
  const Values y = layer.y;
  layer.routing.begin_step();
  layer.evaluate();
  EXPECT_EQ(layer.y, y);
  EXPECT_EQ(std::ranges::count(layer.routing.counts(), 0), kExperts);
  EXPECT_EQ(layer.routing.terms().balance, 0);
}

// The shares of the experts in the balance loss are constants: a small change of a weight changes no choice.
TEST(Experts, HaveTheGradientsOfFiniteDifferences) {
  for (const bool norm_topk : {false, true}) {
    const Variant variant{.norm_topk = norm_topk, .shared = 10, .per_sequence = norm_topk};
    Layer layer(variant);
    layer.step();
    for (auto& [name, values] : weights(variant.shared)) {
      const Values gradient = layer.gradient(name);
      for (size_t i = 0; i < values.size(); i += values.size() / 6) {
        const auto objective = [&](double change) {
          Layer moved(variant);
          Values other = values;
          other[i] += change;
          moved.set(name, other);
          return moved.step();
        };
        const double slope = (objective(1e-5) - objective(-1e-5)) / 2e-5;
        EXPECT_NEAR(gradient[i], slope, 1e-8) << name << " " << i;
      }
    }
  }
}

TEST(Experts, ComputeInjectedChoices) {
  Layer layer({}), injected({});
  layer.step();
  std::vector<int32_t> choices = layer.choices;
  injected.routing.choices = {reinterpret_cast<std::byte*>(choices.data()), {kRows, kChosen}, DType::i32, kChosen};
  injected.step();
  EXPECT_EQ(injected.y, layer.y);
  EXPECT_EQ(injected.dx, layer.dx);
  std::ranges::fill(choices, 3);  // and expert 4
  for (size_t i = 1; i < choices.size(); i += kChosen) choices[i] = 4;
  injected.step();
  EXPECT_EQ(std::vector<int64_t>(injected.routing.counts().begin(), injected.routing.counts().end()),
            (std::vector<int64_t>{0, 0, 0, kRows, kRows}));
}

}  // namespace
}  // namespace trainer::parallel
