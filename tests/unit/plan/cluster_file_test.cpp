// The files that describe machines.
#include <gtest/gtest.h>

#include <filesystem>

#include "plan/cluster.h"
#include "rigs/messages.h"

namespace trainer::plan {
namespace {

constexpr const char* kText = R"([cluster]
name = "x"
devices_per_node = 2
[device]
name = "d"
kind = "cpu"
memory_gib = 2
memory_gb_per_s = 10
tflops_fp32 = 0.1
[intra]
gb_per_s = 3
start_us = 7
)";

TEST(ClusterFile, ReadsBackWhatItWrites) {
  Cluster c = parse_cluster(kText, "x.toml");
  EXPECT_EQ(c.peak(DType::f32), 1e11);
  EXPECT_EQ(c.peak(DType::bf16), 0);
  EXPECT_EQ(c.memory_bytes, double(2ll << 30));
  EXPECT_FALSE(c.measured);
  EXPECT_EQ(c.skew, 1);
  c.measured = true;
  c.ranks = 4;
  c.skew = 1.25;
  EXPECT_EQ(c.in_step, (std::array{1.0, 1.0, 1.0}));
  EXPECT_EQ(c.intra.progress, 1);
  c.inter = {.gb_per_s = 0.025, .start_us = 90.5, .hop_us = 12, .slowdown = 0.25, .progress = 0.5};
  c.in_step = {0.75, 1, 1.5};
  c.attention_in_step = 0.125;
  c.attentions = {{DType::f32, true, 1024, 16, 2.5e10}};
  c.operators = {{OpKind::norm, 5e9}, {OpKind::grad_norm, 6e9}};
  c.products = {{DType::f32, ProductForm::dw, 128, 256, 512, 3.5e10}, {DType::bf16, ProductForm::dx, 1, 2, 3, 1e9}};
  c.collectives = {{CommOp::all_to_all, 4, 2, 65536, 1.25e-4}};
  const std::string text = to_toml(c);
  const Cluster again = parse_cluster(text, "y.toml");
  EXPECT_EQ(to_toml(again), text);
  EXPECT_TRUE(again.measured);
  EXPECT_EQ(again.skew, 1.25);
  EXPECT_EQ(again.products.size(), 2u);
  EXPECT_EQ(again.collectives.at(0).op, CommOp::all_to_all);
  EXPECT_NEAR(again.inter.hop_us, 12, 1e-12);
  EXPECT_EQ(again.inter.progress, 0.5);
  EXPECT_EQ(again.in_step, c.in_step);
  EXPECT_EQ(again.attention_in_step, 0.125);
  ASSERT_EQ(again.attentions.size(), 1u);
  EXPECT_TRUE(again.attentions.front().backward);
  EXPECT_EQ(again.attentions.front().head_dim, 16);
  EXPECT_EQ(again.operators, c.operators);
}

TEST(ClusterFile, OfEveryClusterThatComesWithTheProgramIsADataSheet) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TRAINER_SOURCE_DIR "/configs/clusters")) {
    const Cluster c = read_cluster(entry.path().string());
    ++files;
    EXPECT_FALSE(c.measured) << c.path;
    EXPECT_FALSE(c.source.empty()) << c.path;
    EXPECT_LT(c.efficiency, 1) << c.path;
    EXPECT_TRUE((c.host.known() && c.inter.gb_per_s > 0) || c.cpu) << c.path;
  }
  EXPECT_GE(files, 10);
}

TEST(ClusterFile, ReportsWhatIsWrongAndWhere) {
  const std::string norms = "[[operator]]\nkind = \"norm\"\ngb_per_s = 1\n";
  struct Case {
    std::string from, to;
    std::vector<std::string> parts;
  };
  std::vector<Case> cases = {
      {"memory_gib = 2\n", "", {"c.toml:4:1: device.memory_gib: missing", "above 0"}},
      {"gb_per_s = 3", "gb_per_s = -3", {"c.toml:11:12: intra.gb_per_s: ", "above 0", "integer -3"}},
      {"kind = \"cpu\"", "kind = \"gpus\"", {"c.toml:6:8: device.kind: ", "cpu, gpu", "did you mean \"gpu\""}},
      {"start_us", "startus", {"did you mean \"start_us\""}},
      {"[intra]",
       "[[operator]]\nkind = \"norms\"\ngb_per_s = 1\n[intra]",
       {"c.toml:11:8: operator.kind: ", "norm, activation, rope", "did you mean \"norm\""}},
      {"[intra]", "[[attention]]\ncompute = \"fp32\"\npass = \"both\"\n[intra]", {"forward, backward"}},
      {"start_us", "progress = 50\nstart_us", {"c.toml:12:12: intra.progress: ", "at most 1", "integer 50"}},
      {"start_us", "progress = 0\nstart_us", {"intra.progress: ", "above 0"}},
      {"start_us", "progres = 1\nstart_us", {"did you mean \"progress\""}},
      {"[intra]", norms + norms + "[intra]", {"c.toml:13:1: operator: ", "\"norm\"", "keep one"}},
      {"[intra]", "[intro]", {"did you mean \"intra\""}},
      {"tflops_fp32 = 0.1", "", {"no peak"}},
      {"name = \"d\"", "name = ", {"c.toml:5:"}},
      {"[cluster]", "[[cluster_]]", {"unknown table"}}};
  for (const char* share : {"memory_share", "efficiency", "attention"})
    cases.push_back({"memory_gib", format("{} = 0\nmemory_gib", share), {share, "above 0", "integer 0"}});
  for (const Case& c : cases) {
    std::string text = kText;
    text.replace(text.find(c.from), c.from.size(), c.to);
    tests::expect_error(Code::config, c.parts, [&] { parse_cluster(text, "c.toml"); });
  }
}

}  // namespace
}  // namespace trainer::plan
