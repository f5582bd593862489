// Muon on many ranks, as threads: the bits of one rank, given equal gradients, and the bytes that were predicted.
#include "optim/muon.h"

#include "config/tags.h"
#include "optim/make.h"
#include "rigs/axonn.h"
#include "rigs/layout_checks.h"
#include "rigs/megatron.h"
#include "rigs/optimus.h"

namespace trainer::tests {
namespace {

using config::Arch;
using config::Config;

Config with_muon(Config c) {
  c.optim.name = config::OptimizerName::muon;
  c.muon = {.momentum = 0.95, .nesterov = true, .steps = 5, .lr_ratio = 1, .weight_decay = 0.1};
  return c;
}

/// Shards that neighbouring layers and sites divide in different ways, some transposed.
Config mixed(Arch arch) {
  Config c = configure(Layout{.arch = arch, .kv_heads = arch == Arch::llama ? 2 : 0});
  c.parallel.strategy = "autoddl";
  c.parallel.axes = {2, 2};
  for (config::LayerTags tags : {config::LayerTags{"rr", "cc", "cc", "cc", "kk", "cc", "kk"},
                                 config::LayerTags{"rc", "rc", "rc", "fc", "fc", "fc", "fk"}}) {
    tags.layers = 1;
    c.parallel.layer.push_back(tags);
  }
  c.parallel.head = "rc";
  c.parallel.table = "fv";
  return c;
}

struct Case {
  std::string name;
  Config config;
};
std::ostream& operator<<(std::ostream& out, const Case& one) { return out << one.name; }

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const std::string& name, const Config& c) { all.push_back({name, with_muon(c)}); };
  for (const Layout& l :
       {Layout{2}, Layout{4, 1, true, Arch::llama}, Layout{4, 1, true, Arch::gpt2, 2, 2}, Layout{1, 2}, Layout{2, 2}})
    add(to_string(l), configure(l));
  Config three = configure(Layout{1, 3});
  three.train.global_batch = 6;
  add("ThreeReplicas", three);
  for (const Grid& g : {Grid{2, 1, 1}, Grid{1, 2, 1}, Grid{1, 1, 2}, Grid{2, 2, 2}, Grid{1, 2, 2, 2, Arch::llama}})
    add(to_string(g), configure(g));
  for (const Square& s :
       {Square{2}, Square{2, 1, 2, Arch::llama}, Square{2, 2, 1, Arch::gpt2, "auto", {1, 1}, "gather"}})
    add(to_string(s), configure(s));
  add("MixedGpt2", mixed(Arch::gpt2));
  add("MixedLlama", mixed(Arch::llama));
  return all;
}

double gradient(const std::string& name, int64_t step, int64_t index) {
  const uint32_t draw = philox_at(philox_key(static_cast<uint64_t>(step), name), static_cast<uint64_t>(index));
  return (static_cast<double>(draw % 2001) - 1000) * 1e-4;
}

/// All tensors after `updates` updates with these gradients. Ranks that store the same elements must agree.
Tensors updated(const Config& c, DType compute, int64_t updates) {
  Tensors all;
  std::mutex mutex;
  comm::run_on_threads(ranks_of(c), {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, c, compute, 1);
    params::ParamStore& store = run.trainer.store();
    const optim::Rules rules = optim::make_rules(run.trainer.config(), compute);
    const std::unique_ptr<optim::Optimizer> optimizer = optim::make_optimizer(store, rules);
    Arena heap(run.device, Arena::Mode::heap);
    Meter meter;
    Exec ex{run.device, heap, meter};
    for (int64_t t = 1; t <= updates; ++t) {
      for (const params::Param& param : store.params()) {
        const Tensor grad = store.groups()[static_cast<size_t>(param.group)].grad;
        for (const mesh::Run& r : param.runs)
          for (int64_t i = 0; i < r.length; ++i) {
            const double value = gradient(param.name, t, r.global + i);
            const int64_t at = r.local + i * r.stride;
            grad.dtype == DType::f64 ? grad.as<double>()[at] = value : grad.as<float>()[at] = static_cast<float>(value);
          }
      }
      optimizer->step(ex, {.lr = 1e-2, .t = t, .gradient_scale = t % 2 == 0 ? 0.7 : 1.0});
    }
    std::vector<checkpoint::TensorSlice> slices = checkpoint::slices_to_fill(store, true);
    for (const params::Param& param : store.params()) {
      const params::Group& group = store.groups()[static_cast<size_t>(param.group)];
      if (group.compute)
        slices.push_back({param.name + " compute", param.shape, group.compute.tensor(), param.runs, nullptr});
    }
    const std::lock_guard lock(mutex);
    for (const checkpoint::TensorSlice& slice : slices) {
      std::vector<double>& out = all[slice.name];
      out.resize(static_cast<size_t>(slice.shape.count()), NAN);
      for (const mesh::Run& r : slice.runs)
        for (int64_t i = 0; i < r.length; ++i) {
          const int64_t at = r.local + i * r.stride;
          const double value = slice.local.dtype == DType::f64   ? slice.local.as<double>()[at]
                               : slice.local.dtype == DType::f32 ? static_cast<double>(slice.local.as<float>()[at])
                                                                 : static_cast<double>(slice.local.as<bf16>()[at]);
          double& known = out[static_cast<size_t>(r.global + i)];
          if (std::isnan(known)) known = value;
          ASSERT_EQ(value, known) << slice.name << "[" << r.global + i << "] on rank " << world.rank();
        }
    }
  });
  return all;
}

void expect_same(const Tensors& many, const Tensors& one) {
  ASSERT_EQ(many.size(), one.size());
  for (const auto& [name, values] : one) {
    const auto found = many.find(name);
    ASSERT_NE(found, many.end()) << name;
    EXPECT_TRUE(found->second == values) << name;
  }
}

class MuonLayouts : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, MuonLayouts, testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

TEST_P(MuonLayouts, HaveTheBitsOfOneRankGivenEqualGradients) {
  for (const DType compute : {DType::f64, DType::f32, DType::bf16}) {
    const Tensors one = updated(on_one_rank(GetParam().config), compute, 3);
    EXPECT_TRUE(one.contains("blocks.0.attn.q.weight#momentum"));
    EXPECT_FALSE(one.contains("blocks.0.attn.q.weight#v"));
    const auto same = [&](const char* what, const std::function<void(Config&)>& change) {
      SCOPED_TRACE(format("{}, {}", name_of(compute), what));
      Config c = GetParam().config;
      change(c);
      expect_same(updated(c, compute, 3), one);
    };
    same("usual", [](Config&) {});
    same("no overlap", [](Config& c) { c.debug.overlap = false; });
    if (GetParam().config.parallel.data <= 1) continue;
    same("ZeRO-1", [](Config& c) { c.parallel.zero_stage = 1; });
    same("owners in each replica", [](Config& c) { c.muon.owners = config::MuonOwners::replica; });
  }
}

TEST_P(MuonLayouts, FollowOneRankAndSendThePredictedBytes) {
  const Config& c = GetParam().config;
  constexpr int64_t kSteps = 4;
  const Result many = train(c, DType::f64, kSteps), one = train(on_one_rank(c), DType::f64, kSteps);
  expect_predicted_bytes(many, kSteps);
  for (size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(many.losses[i], one.losses[i], 1e-9);
  if (c.parallel.data <= 1) return;
  Config split = c;
  split.parallel.zero_stage = 1;
  const Result zero = train(split, DType::f64, kSteps);
  expect_predicted_bytes(zero, kSteps);
  expect_same_bits(zero, many);
}

TEST(Muon, StateIsLoadedInOtherLayouts) {
  const std::vector<Config> layouts{with_muon(on_one_rank(configure(Square{1}))), with_muon(configure(Square{2})),
                                    with_muon(configure(Grid{2, 1, 2})), with_muon(configure(Square{1, 1, 2}))};
  expect_same_tensors_in(layouts);
}

}  // namespace
}  // namespace trainer::tests
