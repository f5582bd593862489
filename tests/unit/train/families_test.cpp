// Every published family in three layouts, compared with one rank over 20 steps; and the effect of rounded partial sums
// with norms after attention and MLP.
#include "rigs/axonn.h"
#include "rigs/layout_checks.h"
#include "rigs/megatron.h"

namespace trainer::tests {
namespace {

using config::Config;

struct Family {
  const char* name;
  config::Arch arch;
  void (*change)(config::Model& model);
};
std::ostream& operator<<(std::ostream& out, const Family& family) { return out << family.name; }

const Family kFamilies[] = {
    {"Gpt2", config::Arch::gpt2, [](config::Model&) {}},
    {"Llama", config::Arch::llama, [](config::Model&) {}},
    {"Llama3", config::Arch::llama,
     [](config::Model& m) {
       m.rope_type = config::RopeType::llama3;
       m.rope_factor = 4;
       m.rope_original = 16;
       m.tie_embeddings = true;
     }},
    {"Mistral", config::Arch::mistral,
     [](config::Model& m) {
       m.head_dim = 6;
       m.window = 5;
     }},
    {"Qwen2", config::Arch::qwen2, [](config::Model& m) { m.tie_embeddings = true; }},
    {"Qwen3", config::Arch::qwen3,
     [](config::Model& m) {
       m.head_dim = 6;
       m.window = 5;
       m.window_full_every = 2;
     }},
    {"SmolLm3", config::Arch::smollm3,
     [](config::Model& m) {
       m.nope_every = 2;
       m.tie_embeddings = true;
     }},
    {"Olmo2", config::Arch::olmo2, [](config::Model&) {}},
    {"Olmo3", config::Arch::olmo3,
     [](config::Model& m) {
       m.window = 5;
       m.window_full_every = 2;
       m.rope_type = config::RopeType::linear;
       m.rope_factor = 4;
       m.window_rope_theta = 1e4;
     }},
    {"Gemma3", config::Arch::gemma3,
     [](config::Model& m) {
       m.head_dim = 6;
       m.attn_scalar = 10;
       m.window = 5;
       m.window_full_every = 2;
       m.window_rope_theta = 100;
       m.tie_embeddings = true;
     }},
    {"GptNeox", config::Arch::gpt_neox,
     [](config::Model& m) {
       m.n_head = m.n_kv_head = 4;  // heads have 8 features, 2 of which rotate
       m.bias = true;
     }},
    {"OtherFacts", config::Arch::llama,
     [](config::Model& m) {  // no family: LayerNorm with RoPE and a plain MLP
       m.family = {.norm = config::NormKind::layer, .positions = config::Positions::rope};
       m.bias = true;
     }},
};

class FamilyLayouts : public testing::TestWithParam<Family> {};

TEST_P(FamilyLayouts, FollowOneRankOver20Steps) {
  constexpr int64_t kSteps = 20;
  const Family& family = GetParam();
  Config one = tiny_config(family.arch == config::Arch::gpt2 ? config::Arch::gpt2 : config::Arch::llama);
  set_family(one.model, family.arch);
  one.model.n_head = 8;
  one.model.n_kv_head = family.arch == config::Arch::gpt2 ? 8 : 2;  // four ranks of `tensor` share them
  one.model.d_model = 32;
  one.model.d_ff = 48;
  one.model.seq_len = 12;
  one.optim.grad_clip = 0.1;
  family.change(one.model);
  const Result single = train(one, DType::f64, kSteps);
  struct Cut {
    const char* name;
    void (*change)(config::Parallel& parallel);
  };
  for (const auto& [name, change] : {Cut{"tensor", [](config::Parallel& p) { p.tensor = 4; }},
                                     {"square",
                                      [](config::Parallel& p) {
                                        p.strategy = config::StrategyName::optimus_2d;
                                        p.mesh = {2, 2};
                                        p.panels = config::Panels::ring;
                                      }},
                                     {"grid and replicas", [](config::Parallel& p) {
                                        p.strategy = config::StrategyName::axonn_4d;
                                        p.grid = {2, 1, 2};
                                        p.data = 2;
                                        p.zero_stage = 1;
                                      }}}) {
    SCOPED_TRACE(name);
    Config many = one;
    change(many.parallel);
    expect_same_run(train(many, DType::f64, kSteps), single);
  }
}
INSTANTIATE_TEST_SUITE_P(All, FamilyLayouts, testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param.name); });

// Norms after attention and MLP make the rounding of partial sums as large as that of the residual stream. Without
// such norms, it is small compared with the stream.
TEST(PostNorms, AreAsExactAsOneRankWithPartialSumsInFp32) {
  for (const Config& base :
       {configure(MegatronLayout{4, 1, true, config::Arch::llama, 1}),
        configure(AxonnGrid{2, 2, 1, 1, config::Arch::llama}), configure(AxonnGrid{1, 4, 1, 1, config::Arch::llama})})
    for (const config::QkNorm qk_norm : {config::QkNorm::none, config::QkNorm::full}) {
      Config c = base;
      c.model.init_std = 0.02;
      c.model.norm_place = config::NormPlace::post;
      c.model.qk_norm = qk_norm;
      SCOPED_TRACE(format("{} {} {}", name_of(c.parallel.strategy), c.parallel.grid[0],
                          config::kQkNormNames[static_cast<size_t>(qk_norm)]));
      const Config one = on_one_rank(c);
      const Result exact = train(one, DType::f64, 1), rough = train(one, DType::bf16, 10);
      /// Errors relative to those of one rank: the largest of all tensors, and their geometric mean.
      const auto errors = [&](const Result& result) {
        double largest = 0, sum = 0;
        for (const auto& [name, values] : exact.gradients) {
          const double error = relative_error(result.gradients.at(name), values);
          const double ratio = error / relative_error(rough.gradients.at(name), values);
          largest = std::max(largest, ratio);
          sum += std::log(ratio);
        }
        return std::pair(largest, std::exp(sum / static_cast<double>(exact.gradients.size())));
      };
      EXPECT_LT(errors(train(c, DType::bf16, 1)).second, 1.6);
      c.parallel.sum_dtype = DType::f32;
      const Result wide = train(c, DType::bf16, 10);
      EXPECT_LT(errors(wide).first, 1.5);
      EXPECT_LT(errors(wide).second, 1.1);
      EXPECT_NEAR(wide.losses[9], rough.losses[9], 2e-3 * rough.losses[9]);
    }
}

}  // namespace
}  // namespace trainer::tests
