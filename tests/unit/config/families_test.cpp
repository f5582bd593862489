// The table of model families, and the linears that follow from a model.
#include "config/families.h"

#include <gtest/gtest.h>

#include "base/format.h"
#include "config/block_linears.h"
#include "config/load.h"

namespace trainer::config {
namespace {

using sharding::Site;

Model model_of(const std::vector<std::string>& sets) { return load_text("", "test", sets, {.files = false}).model; }

TEST(Families, AreFoundByNameAndInTheOrderOfArch) {
  for (size_t i = 0; i < families().size(); ++i) {
    const Family& family = families()[i];
    SCOPED_TRACE(family.name);
    EXPECT_EQ(find_family(family.name), &family);
    std::vector<std::string> sets = {format("model.arch={}", family.name)};
    if (family.facts.experts) sets.insert(sets.end(), {"model.n_expert=8", "model.d_expert=64"});
    const Model model = model_of(sets);
    EXPECT_EQ(model.arch, static_cast<Arch>(i));
    EXPECT_EQ(&family_of(model), &family);
    EXPECT_EQ(model.tie_embeddings, family.facts.tied);
    EXPECT_EQ(query_key_norm(model), family.facts.qk_norm);
  }
  EXPECT_EQ(find_family("lama"), nullptr);
}

TEST(Families, DecideTheNumbersThatAreNotSet) {
  const Model neox = model_of({"model.arch=gpt_neox"}), llama = model_of({"model.arch=llama"}),
              set = model_of({"model.arch=gpt_neox", "model.rotary_dim=6", "model.norm_eps=2e-6", "model.rope_theta=5",
                              "model.activation=gelu", "model.parallel_residual=false", "model.window=0"});
  EXPECT_EQ(rotary_size(neox), 16);  // a quarter of 64
  EXPECT_EQ(rotary_size(llama), 64);
  EXPECT_EQ(rotary_size(model_of({"model.arch=gpt_neox", "model.head_dim=80"})), 20);
  EXPECT_EQ(rotary_size(model_of({"model.arch=gpt_neox", "model.head_dim=44"})), 10);  // made even
  EXPECT_EQ(activation_of(neox), Activation::gelu_erf);
  EXPECT_EQ(activation_of(llama), Activation::silu);
  EXPECT_TRUE(has_parallel_residual(neox));
  for (const Model& model : {neox, llama}) {
    EXPECT_EQ(model.norm_eps, 1e-5);
    EXPECT_EQ(model.rope_theta, 1e4);
    EXPECT_EQ(model.window, 0);
    EXPECT_EQ(model.window_full_every, 0);
  }
  const Model olmo = model_of({"model.arch=olmo3"}),
              scaled =
                  model_of({"model.arch=olmo3", "model.rope_type=linear", "model.rope_factor=2", "model.window=7"}),
              full = model_of({"model.arch=olmo3", "model.rope_type=linear", "model.rope_factor=2", "model.window=0"});
  EXPECT_EQ(olmo.window, 4096);
  EXPECT_EQ(olmo.window_full_every, 4);
  EXPECT_EQ(olmo.window_rope_theta, 0);
  EXPECT_EQ(scaled.window_rope_theta, 5e5);
  EXPECT_TRUE(has_window_rope(scaled, 2));
  EXPECT_FALSE(has_window_rope(scaled, 3));
  EXPECT_EQ(full.window_full_every, 0);
  EXPECT_EQ(full.window_rope_theta, 0);
  EXPECT_EQ(rotary_size(set), 6);
  EXPECT_EQ(set.norm_eps, 2e-6);
  EXPECT_EQ(set.rope_theta, 5);
  EXPECT_EQ(activation_of(set), Activation::gelu);
  EXPECT_FALSE(has_parallel_residual(set));
}

TEST(BlockLinears, HaveThePartsWidthsAndBiasesOfTheModel) {
  struct Expected {
    Site site;
    int64_t in;
    std::vector<std::pair<std::string, int64_t>> parts;
    bool bias;
  };
  const auto check = [](const Model& model, const std::vector<Expected>& expected) {
    const std::vector<BlockLinear> linears = linears_of(model, 0);
    ASSERT_EQ(linears.size(), expected.size());
    for (size_t i = 0; i < linears.size(); ++i) {
      SCOPED_TRACE(i);
      const auto& [site, in, parts, bias] = expected[i];
      EXPECT_EQ(linears[i].site, site);
      EXPECT_EQ(linears[i].in, in);
      EXPECT_EQ(linears[i].bias, bias);
      std::vector<std::pair<std::string, int64_t>> found;
      int64_t out = 0;
      for (const LinearPart& part : linears[i].parts) {
        found.emplace_back(part.name, part.width);
        out += part.width;
      }
      EXPECT_EQ(found, parts);
      EXPECT_EQ(linears[i].out(), out);
    }
  };
  check(model_of({}), {{Site::qkv, 768, {{"attn.q", 768}, {"attn.k", 768}, {"attn.v", 768}}, true},
                       {Site::out, 768, {{"attn.o", 768}}, true},
                       {Site::up, 768, {{"mlp.up", 3072}}, true},
                       {Site::down, 3072, {{"mlp.down", 768}}, true}});
  check(model_of({"model.arch=qwen2", "model.n_kv_head=2", "model.head_dim=32", "model.d_ff=1000"}),
        {{Site::qkv, 768, {{"attn.q", 384}, {"attn.k", 64}, {"attn.v", 64}}, true},
         {Site::out, 384, {{"attn.o", 768}}, false},
         {Site::up, 768, {{"mlp.gate", 1000}, {"mlp.up", 1000}}, false},
         {Site::down, 1000, {{"mlp.down", 768}}, false}});
}

TEST(BlockLinears, OfALayerWithExpertsHaveRoles) {
  Model model = model_of({"model.arch=llama", "model.n_kv_head=2", "model.n_layer=4"});
  model.n_expert = 8;
  model.d_expert = 40;
  model.d_shared = 24;
  model.moe_every = 2;
  EXPECT_EQ(moe_layers(model), 2);
  ASSERT_EQ(linears_of(model, 0).size(), 4U);  // layers 1 and 3, counted from 1, are dense
  EXPECT_EQ(linears_of(model, 2)[2].out(), 2 * model.d_ff);
  const std::vector<BlockLinear> linears = linears_of(model, 1);
  struct Expected {
    Site site;
    Role role;
    int64_t in, out, matrices, active;
    const char* name;
    bool whole_matrix;
  };
  const Expected expected[] = {{Site::qkv, Role::dense, 768, 1024, 1, 1, "attn.q", true},
                               {Site::out, Role::dense, 768, 768, 1, 1, "attn.o", true},
                               {Site::up, Role::router, 768, 8, 1, 1, "mlp.router", false},
                               {Site::up, Role::experts, 768, 80, 8, 2, "mlp.experts.gate", true},
                               {Site::down, Role::experts, 40, 768, 8, 2, "mlp.experts.down", true},
                               {Site::up, Role::shared, 768, 48, 1, 1, "mlp.shared.gate", true},
                               {Site::down, Role::shared, 24, 768, 1, 1, "mlp.shared.down", true},
                               {Site::up, Role::shared_gate, 768, 1, 1, 1, "mlp.shared_gate", false}};
  ASSERT_EQ(linears.size(), std::size(expected));
  for (size_t i = 0; i < linears.size(); ++i) {
    const Expected& e = expected[i];
    SCOPED_TRACE(e.name);
    const BlockLinear& found = linears[i];
    EXPECT_EQ(found.site, e.site);
    EXPECT_EQ(found.role, e.role);
    EXPECT_EQ(found.in, e.in);
    EXPECT_EQ(found.out(), e.out);
    EXPECT_EQ(found.matrices, e.matrices);
    EXPECT_EQ(found.active, e.active);
    EXPECT_EQ(found.parts.front().name, e.name);
    EXPECT_EQ(found.whole_matrix, e.whole_matrix);
    EXPECT_EQ(found.active_weights(), e.active * e.in * e.out);
  }
}

}  // namespace
}  // namespace trainer::config
