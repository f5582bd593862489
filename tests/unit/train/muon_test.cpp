// Muon on ranks that are threads has the bits of one rank, given equal gradients, and sends the predicted bytes.
#include "optim/muon.h"

#include "config/sharding_spec.h"
#include "rigs/layout_cases.h"
#include "rigs/layout_checks.h"
#include "rigs/muon.h"

namespace trainer::tests {
namespace {

using config::Arch;
using config::Config;

struct Case {
  std::string name;
  Config config;
};
std::ostream& operator<<(std::ostream& out, const Case& one) { return out << one.name; }

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const std::string& name, const Config& c) { all.push_back({name, with_muon(c)}); };
  for (const MegatronLayout& l :
       {MegatronLayout{2}, MegatronLayout{4, 1, true, Arch::llama}, MegatronLayout{4, 1, true, Arch::gpt2, 2, 2},
        MegatronLayout{1, 2}, MegatronLayout{2, 2}})
    add(to_string(l), configure(l));
  Config three = configure(MegatronLayout{1, 3});
  three.train.global_batch = 6;
  add("ThreeReplicas", three);
  for (const AxonnGrid& g : {AxonnGrid{2, 1, 1}, AxonnGrid{1, 2, 1}, AxonnGrid{1, 1, 2}, AxonnGrid{2, 2, 2},
                             AxonnGrid{1, 2, 2, 2, Arch::llama}})
    add(to_string(g), configure(g));
  for (const Square& s : {Square{2}, Square{2, 1, 2, Arch::llama}, Square{1, 2},
                          Square{2, 2, 1, Arch::gpt2, config::Stationary::automatic, {1, 1}, config::Panels::gather}})
    add(to_string(s), configure(s));
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    const LayoutCase mixed = mixed_specs(arch);
    add(mixed.name, mixed.config);
  }
  for (const LayoutCase& one :
       layouts_named({"Tensor2Data2Each2LlamaExperts", "Shards4Context2Data1LlamaSharedExpert"}))
    add(one.name, one.config);
  return all;
}

/// True if ranks hold copies of the model, among which ZeRO-1 divides the optimizer state: replicas, or depth in 2.5D.
bool has_copies(const Config& c) {
  return c.parallel.data > 1 || (c.parallel.mesh.size() == 3 && c.parallel.mesh[2] > 1);
}

/// Returns all tensors after three updates.
Tensors updated(const Config& c, DType compute, int lanes = 0) {
  Tensors all;
  std::mutex mutex;
  comm::run_on_threads(ranks_of(c), {.timeout_s = 60, .lanes = lanes},
                       [&](comm::World& world) { update_by_formula(&world, c, compute, 3, all, mutex); });
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
    const Tensors one = updated(on_one_rank(GetParam().config), compute);
    EXPECT_TRUE(one.contains("blocks.0.attn.q.weight#momentum"));
    EXPECT_FALSE(one.contains("blocks.0.attn.q.weight#v"));
    const auto same = [&](const char* what, const std::function<void(Config&)>& change, int lanes = 0) {
      SCOPED_TRACE(format("{}, {}", name_of(compute), what));
      Config c = GetParam().config;
      change(c);
      expect_same(updated(c, compute, lanes), one);
    };
    same("usual", [](Config&) {});
    same(
        "one lane", [](Config&) {}, 1);
    same("no overlap", [](Config& c) { c.debug.overlap = false; });
    if (!has_copies(GetParam().config)) continue;
    same("ZeRO-1", [](Config& c) { c.parallel.zero_stage = 1; });
    same("owners in each replica", [](Config& c) { c.muon.owners = config::MuonOwners::replica; });
  }
}

TEST_P(MuonLayouts, FollowOneRankAndSendThePredictedBytes) {
  Config c = GetParam().config;
  c.optim.grad_clip = 0.5;
  constexpr int64_t kSteps = 20;
  const Result many = train(c, DType::f64, kSteps), one = train(on_one_rank(c), DType::f64, kSteps);
  expect_predicted_bytes(many, kSteps);
  for (size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_GT(one.norms[i], c.optim.grad_clip) << "clipping is active";
    EXPECT_NEAR(many.losses[i] / one.losses[i], 1, 1e-10) << "step " << i + 1;
    EXPECT_NEAR(many.norms[i] / one.norms[i], 1, 1e-9) << "step " << i + 1;
  }
  const Result narrow = train(c, DType::f32, 10), narrow_one = train(on_one_rank(c), DType::f32, 10);
  EXPECT_NEAR(narrow.losses.back() / narrow_one.losses.back(), 1, 1e-5);
  if (!has_copies(c)) return;
  Config split = c;
  split.parallel.zero_stage = 1;
  const Result zero = train(split, DType::f64, kSteps);
  expect_predicted_bytes(zero, kSteps);
  expect_same_bits(zero, many);
}

/// Sets an element of a gradient on this rank: of the first matrix that Muon updates, or of the last tensor that
/// AdamW updates. Of tensors with copies, the norm sees only one copy: all have the same gradient.
void spoil(params::ParamStore& store, bool matrix, float value) {
  const params::Param* chosen = nullptr;
  for (const params::Param& param : store.params())
    if (param.primary && !param.runs.empty() && (matrix ? param.hidden && chosen == nullptr : !param.hidden))
      chosen = &param;
  ASSERT_NE(chosen, nullptr);
  store.groups()[static_cast<size_t>(chosen->group)].grad.as<float>()[chosen->runs.back().local] = value;
}

TEST_P(MuonLayouts, ChangeNothingInASkippedStep) {
  Config c = GetParam().config;
  c.train.global_batch = 2 * c.train.micro_batch * std::max<int64_t>(1, c.parallel.data);
  for (const bool matrix : {true, false})
    for (const float value : {HUGE_VALF, NAN}) {
      SCOPED_TRACE(format("{} in a {}", value, matrix ? "matrix" : "tensor of AdamW"));
      comm::run_on_threads(ranks_of(c), {.timeout_s = 60}, [&](comm::World& world) {
        Tiny run(&world, c, DType::f32, 1), without(&world, c, DType::f32, 1);
        const auto step = [&](Tiny& tiny, int64_t n, int64_t update, const train::BatchSource& batches) {
          return tiny.trainer.step({.step = n,
                                    .first_sample = (n - 1) * c.train.global_batch,
                                    .adam_step = update,
                                    .micro_batches = tiny.trainer.accumulation(),
                                    .lr = 1e-2},
                                   batches);
        };
        // The second micro-batch is read after the gradients of the first one, to which its own are added.
        int reads = 0;
        const train::BatchSource spoiled = [&](int64_t sample, int64_t sequences, data::TokenBatch& out) {
          run.batches(sample, sequences, out);
          if (++reads == 2 && world.rank() == world.size() - 1) spoil(run.trainer.store(), matrix, value);
        };
        ASSERT_FALSE(step(run, 1, 1, run.batches).skipped);
        const std::vector<std::byte> before = run.state();
        const auto outcome = step(run, 2, 2, spoiled);
        EXPECT_TRUE(outcome.skipped);
        EXPECT_TRUE(std::isfinite(outcome.loss)) << "only a gradient is not finite";
        EXPECT_FALSE(outcome.norm.is_finite());
        EXPECT_TRUE(run.state() == before) << "rank " << world.rank();
        ASSERT_FALSE(step(run, 3, 2, run.batches).skipped);
        step(without, 1, 1, without.batches);
        step(without, 3, 2, without.batches);
        EXPECT_TRUE(run.state() == without.state()) << "rank " << world.rank();
      });
    }
}

TEST(Muon, AccumulatesAsOneLargerBatch) {
  Config c = with_muon(tiny_config());
  c.train.global_batch = c.train.micro_batch = 4;
  Config accumulated = c;
  accumulated.train.micro_batch = 1;
  const Result whole = train(c, DType::f64, 4), parts = train(accumulated, DType::f64, 4);
  for (size_t i = 0; i < whole.losses.size(); ++i) EXPECT_NEAR(parts.losses[i], whole.losses[i], 1e-11);
  for (const auto& [name, values] : whole.state)
    if (!is_key_bias(name)) {
      EXPECT_LE(distance(parts.state.at(name), values), 1e-10) << name;
    }
}

// 12 layers with the proportions of GPT-2 124M: a matrix of the MLP costs as much as three of attention.
TEST(Muon, ARunOnFourRanksSharesTheWorkEvenly) {
  Config c = with_muon(tiny_config());
  c.model.n_layer = 12;
  c.model.n_head = c.model.n_kv_head = 4;
  c.model.d_model = 16;
  c.model.d_ff = 64;
  c.model.seq_len = 12;
  for (const auto& [tensor, data, zero] : {std::tuple{1, 4, 0}, {1, 4, 1}, {2, 2, 0}, {4, 1, 0}}) {
    SCOPED_TRACE(format("tensor {}, data {}, ZeRO {}", tensor, data, zero));
    c.parallel.tensor = tensor;
    c.parallel.data = data;
    c.parallel.zero_stage = zero;
    c.train.global_batch = c.train.micro_batch * data;
    std::vector<double> flops(4);
    comm::run_on_threads(4, {.timeout_s = 60}, [&](comm::World& world) {
      Tiny run(&world, c, DType::f32, 1);
      run.trainer.meter().reset();
      run.step(1);
      flops[static_cast<size_t>(world.rank())] = run.trainer.meter().of(OpKind::orthogonalize).flops;
    });
    const double all = 12 * (4 * 30 * std::pow(16, 3) + 2 * (20 * 16 * 16 * 64 + 10 * std::pow(16, 3)));
    EXPECT_EQ(flops[0] + flops[1] + flops[2] + flops[3], all);
    EXPECT_LE(*std::ranges::max_element(flops), 1.05 * all / 4);
  }
}

TEST(Muon, StateIsLoadedInOtherLayouts) {
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {  // with a tied head, and without
    const std::vector<Config> layouts{
        with_muon(on_one_rank(configure(Square{1, 1, 1, arch}))), with_muon(configure(Square{2, 1, 1, arch})),
        with_muon(configure(AxonnGrid{2, 1, 2, 1, arch})), with_muon(configure(Square{1, 1, 2, arch}))};
    expect_same_tensors_in(layouts);
  }
}

TEST(Muon, StateOfDividedExpertsIsLoadedByOneRankForAllAndBack) {
  const Config divided = with_muon(layouts_named({"Tensor1Data2SpEach2LlamaExpertsDivided"}).front().config);
  Config whole = divided, shards = divided;
  whole.parallel.experts = 1;
  shards.parallel = layouts_named({"Shards4Context2Data1LlamaSharedExpertDivided"}).front().config.parallel;
  expect_same_tensors_in(std::array{divided, whole, divided, shards, on_one_rank(whole), divided});
}

}  // namespace
}  // namespace trainer::tests
