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
    const Model model = model_of({format("model.arch={}", family.name)});
    EXPECT_EQ(model.arch, static_cast<Arch>(i));
    EXPECT_EQ(&family_of(model), &family);
    EXPECT_EQ(model.tie_embeddings, family.facts.tied);
    EXPECT_EQ(query_key_norm(model), family.facts.qk_norm);
  }
  EXPECT_EQ(find_family("lama"), nullptr);
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

}  // namespace
}  // namespace trainer::config
