#include "optim/muon.h"
#include "config/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "ops/gemm.h"
#include "optim/make.h"
#include "params/grad_sink.h"

namespace trainer::optim {
namespace {

config::Config muon_config() {
  config::Config c;
  c.optim = {.name = config::OptimizerName::muon, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  c.muon = {.momentum = 0.95, .nesterov = true, .steps = 5, .lr_ratio = 1, .weight_decay = 0.1};
  return c;
}

/// The matrix under test is the only one in its slot, or between others, or one of three in a tensor, next to others.
enum class Slot { single, joined, sliced };

/// A store with one hidden matrix P₀[i, j] = cos(2i − j)/10, and vectors before and after it.
struct Rig {
  Rig(const config::Config& config, int64_t rows, int64_t cols, Slot slot, DType compute = DType::f64, int threads = 2)
      : device(threads), store(device, compute), rules(make_rules(config, compute)) {
    const int group = store.add_group("block");
    const params::Init init{params::Init::Kind::normal, 0.02};
    const auto part = [&](const char* name, int64_t width, bool hidden) {
      return params::SlotPart{name, store.replicated({rows, width}), init, 0, hidden};
    };
    store.add_slot(group, {{"gain", store.replicated({5}), init}});
    if (slot == Slot::single) {
      store.add_slot(group, {part("w", cols, true)});
    } else if (slot == Slot::joined) {
      store.add_slot(group, {part("before", 3, true), part("w", cols, true), part("after", 7, true)});
    } else {
      const auto experts = [&](const char* name, int64_t width) {
        return params::SlotPart{name, store.replicated({3, rows, width}), init, 0, /*hidden=*/true};
      };
      store.add_slot(group, {experts("before", 2), experts("w", cols)});
      first = rows * cols;
    }
    store.add_slot(group, {{"bias", store.replicated({cols}), init}});
    keep_states(store, rules);
    store.allocate(true);
    store.initialize(3);
    optimizer = make_optimizer(store, rules);
    each_of_w(
        [&](int64_t i, int64_t j, int64_t local) {
          put(store.groups()[0].master, local, std::cos(2.0 * static_cast<double>(i) - static_cast<double>(j)) / 10);
        },
        cols);
    store.refresh_compute();
  }

  static void put(const Tensor& to, int64_t at, double value) {
    to.dtype == DType::f64 ? to.as<double>()[at] = value : to.as<float>()[at] = static_cast<float>(value);
  }
  static double get(const Tensor& from, int64_t at) {
    return from.dtype == DType::f64 ? from.as<double>()[at] : static_cast<double>(from.as<float>()[at]);
  }
  void each_of_w(const std::function<void(int64_t, int64_t, int64_t)>& fn, int64_t cols) const {
    for (const params::Param& param : store.params())
      if (param.name == "w")
        for (const mesh::Run& run : param.runs)
          for (int64_t k = 0; k < run.length; ++k)
            if (const int64_t at = run.global + k - first; param.shape.dims() == 2 || (at >= 0 && at < first))
              fn(at / cols, at % cols, run.local + k * run.stride);
  }
  /// G_t[i, j] = sin(t + 3i + 7j)/(1 + i + j), and other gradients that are not zero.
  void step(int64_t t, int64_t cols, double lr = 0.02, double scale = 1, double factor = 1) {
    const Tensor grad = store.groups()[0].grad;
    for (const params::Param& param : store.params())
      for (const mesh::Run& run : param.runs)
        for (int64_t k = 0; k < run.length; ++k)
          put(grad, run.local + k * run.stride, std::sin(static_cast<double>(run.global + k + t)));
    each_of_w(
        [&](int64_t i, int64_t j, int64_t local) {
          const auto x = static_cast<double>(i), y = static_cast<double>(j);
          put(grad, local, factor * std::sin(static_cast<double>(t) + 3 * x + 7 * y) / (1 + x + y));
        },
        cols);
    optimizer->step(ex, make_update(rules, lr, t, scale));
  }
  std::vector<double> weights(int64_t rows, int64_t cols) const {
    std::vector<double> all(static_cast<size_t>(rows * cols));
    each_of_w([&](int64_t i, int64_t j,
                  int64_t local) { all[static_cast<size_t>(i * cols + j)] = get(store.groups()[0].master, local); },
              cols);
    return all;
  }

  device::CpuDevice device;
  Arena arena{device, Arena::Mode::heap};
  Meter meter;
  Exec ex{device, arena, meter};
  params::ParamStore store;
  Rules rules;
  std::unique_ptr<Optimizer> optimizer;
  int64_t first = 0;  // index of the matrix's first element in its tensor
};

struct Golden {
  const char* name;
  int64_t rows, cols, updates;
  double first, second, last;  // p[0, 0], p[1, 2], p[bottom right]
  void (*change)(config::Config&) = [](config::Config&) {};
  std::vector<double> scales = {1, 1, 1};  // gradient_scale of the updates
};

// From an independent program, whose orthogonalization agrees with torch.optim.Muon in fp64.
const Golden kGoldens[] = {{"4x6", 4, 6, 1, 0.0919063453462636, 0.100665692500691, 0.0535631611436409},
                           {"4x6", 4, 6, 2, 0.0845713108868283, 0.0984510767749332, 0.0511310757123973},
                           {"4x6", 4, 6, 3, 0.0771289018589321, 0.0925405964052597, 0.047040342487764},
                           {"6x4", 6, 4, 1, 0.0924272501877056, 0.0982692943319859, 0.0823319297999096},
                           {"6x4", 6, 4, 3, 0.0778972419313558, 0.089510727802412, 0.0904790981495288},
                           {"5x5", 5, 5, 1, 0.0928184153565644, 0.0990262932100162, -0.0705356789456809},
                           {"5x5", 5, 5, 3, 0.078882883490287, 0.0903437085117373, -0.0709300336334594},
                           {"4x6 spectral", 4, 6, 3, 0.0437204558473303, 0.0822496922131493, 0.0370408105186825,
                            [](config::Config& c) { c.muon.scale = config::MuonScale::spectral; }},
                           {"6x4 spectral", 6, 4, 3, 0.0555064302343402, 0.0792123590002647, 0.106660313091156,
                            [](config::Config& c) { c.muon.scale = config::MuonScale::spectral; }},
                           {"4x6 without Nesterov", 4, 6, 3, 0.0771606467818116, 0.0953691813508013, 0.0483347290763913,
                            [](config::Config& c) { c.muon.nesterov = false; }},
                           {"4x6 clipped",
                            4,
                            6,
                            3,
                            0.0768678517447717,
                            0.0958645597390343,
                            0.0486147456415412,
                            [](config::Config&) {},
                            {1, 0.25, 0.5}},
                           {"4x6 cautious", 4, 6, 3, 0.0771289018589321, 0.0927397972052597, 0.047040342487764,
                            [](config::Config& c) { c.optim.decay = config::Decay::cautious; }},
                           {"6x4 cautious", 6, 4, 3, 0.0778972419313558, 0.089510727802412, 0.0909718393717299,
                            [](config::Config& c) { c.optim.decay = config::Decay::cautious; }},
                           {"4x6 polar", 4, 6, 3, 0.0706532968407637, 0.0889926623810244, 0.0465386306914347,
                            [](config::Config& c) { c.muon.coefficients = config::MuonCoefficients::polar; }}};

TEST(Muon, FollowsTheGoldensAloneAndBesideOtherMatrices) {
  for (const Golden& golden : kGoldens)
    for (const auto& [compute, tolerance] : {std::pair{DType::f64, 1e-12}, {DType::f32, 1e-5}}) {
      SCOPED_TRACE(format("{}, {} updates, {}", golden.name, golden.updates, name_of(compute)));
      config::Config c = muon_config();
      golden.change(c);
      std::vector<double> single;
      for (const Slot slot : {Slot::single, Slot::joined, Slot::sliced}) {
        Rig rig(c, golden.rows, golden.cols, slot, compute);
        for (int64_t t = 1; t <= golden.updates; ++t)
          rig.step(t, golden.cols, 0.02, golden.scales[static_cast<size_t>(t - 1)]);
        const std::vector<double> p = rig.weights(golden.rows, golden.cols);
        EXPECT_NEAR(p[0], golden.first, tolerance);
        EXPECT_NEAR(p[static_cast<size_t>(golden.cols + 2)], golden.second, tolerance);
        EXPECT_NEAR(p.back(), golden.last, tolerance);
        if (slot == Slot::single) single = p;
        EXPECT_EQ(p, single) << "bits do not depend on the slot";
      }
    }
}

TEST(Muon, OnlyDecaysAMatrixWithoutGradient) {
  for (const Slot slot : {Slot::single, Slot::sliced}) {  // an expert that no token has chosen
    Rig rig(muon_config(), 4, 6, slot);
    const std::vector<double> before = rig.weights(4, 6);
    for (int64_t t = 1; t <= 5; ++t) rig.step(t, 6, 0.02, 1, 0);
    const std::vector<double> after = rig.weights(4, 6);
    for (size_t i = 0; i < after.size(); ++i) EXPECT_NEAR(after[i], before[i] * std::pow(0.998, 5), 1e-15);
  }
}

TEST(Muon, LeavesAListOfVectorsToAdamW) {
  const Muon rule(muon_config(), DType::f64);
  params::Param param{.name = "mlp.router.weight", .shape = {8, 4}, .hidden = true};
  EXPECT_TRUE(rule.takes(param));
  param.whole_matrix = false;
  EXPECT_FALSE(rule.takes(param));
}

TEST(Muon, APowerOfTwoInAllGradientsChangesNoBit) {
  Rig usual(muon_config(), 5, 5, Slot::joined), scaled(muon_config(), 5, 5, Slot::joined);
  for (int64_t t = 1; t <= 4; ++t) {
    usual.step(t, 5);
    scaled.step(t, 5, 0.02, 0.25);
  }
  EXPECT_EQ(scaled.weights(5, 5), usual.weights(5, 5));
}

/// Returns all master weights and states after three updates with gradients dW = XᵀdY of integers, whose sums over rows
/// are exact. A step's rows are divided into `parts` micro-batches.
std::vector<double> trained_on_integers(int parts, DType compute) {
  constexpr int64_t kRows = 24, kIn = 5, kCols = 9;
  Rig rig(muon_config(), kIn, kCols, Slot::joined, compute);
  params::GradSink sink(rig.store);
  sink.prepare(rig.device);
  const auto integers = [&](int64_t cols, int64_t t) {
    Buffer all(rig.device, "test", {kRows, cols}, compute);
    for (int64_t i = 0; i < kRows * cols; ++i) {
      const auto value = static_cast<float>((i * i + 3 * i * t + 5 * t) % 17 - 8);
      if (compute == DType::bf16)
        all.tensor().as<bf16>()[i] = bf16(value);
      else
        Rig::put(all, i, static_cast<double>(value));
    }
    return all;
  };
  std::vector<double> out;
  for (int64_t t = 1; t <= 3; ++t) {
    const Buffer x = integers(kIn, t), dy = integers(3 + kCols + 7, t + 1), column = integers(1, t + 2);
    sink.begin_step();
    for (int part = 0; part < parts; ++part) {
      sink.begin_micro(part == parts - 1);
      const auto rows = [&](const Buffer& of) { return of.tensor().row_range(part * kRows / parts, kRows / parts); };
      for (params::SlotId slot = 2; slot >= 0; --slot) {
        const params::GradSlot grad = sink.slot(rig.ex, slot);
        const bool vector = grad.tensor.shape.dims() == 1;
        const int64_t n = vector ? grad.tensor.count() : grad.tensor.cols();
        ops::run(rig.ex, ops::Gemm{.a = rows(vector ? column : x),
                                   .b = rows(dy).col_range(0, n),
                                   .c = vector ? grad.tensor.reshape({1, n}) : grad.tensor,
                                   .trans_a = true,
                                   .accumulate = grad.accumulate});
        sink.complete(rig.ex, slot);
      }
      sink.end_group(rig.ex, 0);
      sink.end_micro(rig.ex);
    }
    out.push_back(sink.finish(rig.ex).norm);
    rig.optimizer->step(rig.ex, make_update(rig.rules, 0.02, t, 1.0 / kRows));
  }
  const params::Group& group = rig.store.groups()[0];
  for (size_t i = 0; i <= group.states.size(); ++i) {
    const Tensor all = i == 0 ? group.master : group.states[i - 1].memory;
    for (int64_t at = 0; at < all.count(); ++at) out.push_back(Rig::get(all, at));
  }
  return out;
}

TEST(Muon, OfIntegersAccumulatesToTheBitsOfOneLargeBatch) {
  for (const DType compute : {DType::f64, DType::f32, DType::bf16}) {
    const std::vector<double> whole = trained_on_integers(1, compute);
    EXPECT_GT(whole[0], 100) << "integers do not cancel";
    EXPECT_EQ(trained_on_integers(4, compute), whole) << name_of(compute);
    EXPECT_EQ(trained_on_integers(24, compute), whole) << name_of(compute);
  }
}

TEST(Muon, RatioAndDecayAreOfTheMatricesOnly) {
  config::Config c = muon_config();
  c.muon.lr_ratio = 0.5;
  c.muon.weight_decay = 0;
  Rig half(c, 4, 6, Slot::single), usual(muon_config(), 4, 6, Slot::single);
  const std::vector<double> before = half.weights(4, 6);
  half.step(1, 6);
  usual.step(1, 6);
  const std::vector<double> a = half.weights(4, 6), b = usual.weights(4, 6);
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(2 * (a[i] - before[i]), b[i] - before[i] * 0.998, 1e-15) << "half the step, no decay";
  const auto vectors = [](const Rig& rig) {
    std::vector<double> all;
    for (const params::Param& param : rig.store.params())
      if (param.shape.dims() == 1)
        for (const mesh::Run& run : param.runs)
          for (int64_t k = 0; k < run.length; ++k) all.push_back(Rig::get(rig.store.groups()[0].master, run.local + k));
    return all;
  };
  EXPECT_EQ(vectors(half), vectors(usual));
}

TEST(Muon, KeepsOneStateForMatricesAndTwoForTheRest) {
  Rig rig(muon_config(), 6, 4, Slot::joined, DType::bf16);
  const params::Group& group = rig.store.groups()[0];
  ASSERT_EQ(group.states.size(), 3u);
  const int64_t matrices = group.states[0].memory.tensor().count();
  EXPECT_EQ(group.states[0].suffix, "momentum");
  EXPECT_EQ(group.states[1].memory.tensor().count(), group.elements - matrices);
  EXPECT_GE(matrices, 6 * (3 + 4 + 7));
  EXPECT_EQ(rig.device.memory().at("optimizer").current, 4 * matrices + 8 * (group.elements - matrices));
  rig.step(1, 4);
  EXPECT_EQ(rig.meter.of(OpKind::orthogonalize).flops,
            static_cast<double>(orthogonalize_flops({6, 3}, 5) + orthogonalize_flops({6, 4}, 5) +
                                orthogonalize_flops({6, 7}, 5)));
  EXPECT_EQ(rig.meter.matmul_flops(), 0) << "the model's products only";
}

TEST(Muon, ThreadsChangeNoBit) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    std::vector<double> first;
    for (const int threads : {1, 3, 2}) {
      Rig rig(muon_config(), 48, 96, Slot::joined, compute, threads);
      for (int64_t t = 1; t <= 3; ++t) rig.step(t, 96);
      if (first.empty()) first = rig.weights(48, 96);
      EXPECT_EQ(rig.weights(48, 96), first) << threads << " threads, " << name_of(compute);
    }
  }
}

}  // namespace
}  // namespace trainer::optim
