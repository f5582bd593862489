// Sharding specs: read from a file and written back, expanded, and their errors.
#include "config/sharding_spec.h"

#include <gtest/gtest.h>

#include "config/layouts.h"
#include "config/load.h"
#include "config/text.h"
#include "rigs/messages.h"

namespace trainer::config {
namespace {

constexpr const char* kFile = R"([model]
n_layer = 6
n_head = 8
d_model = 64
vocab_multiple = 128
[train]
global_batch = 8
micro_batch = 4
[parallel]
strategy = "autoddl"
axes = [2, 4]
head = "r-"
table = "fv"
[[parallel.layer]]
layers = 2
stream = "rc"
attention = "rc"
hidden = "rc"
qkv = "fc"
out = "fc"
up = "fc"
down = "fk"
[[parallel.layer]]
stream = "r-"
attention = "rc"
hidden = "rc"
qkv = "rc"
out = "rk"
up = "rc"
down = "rk"
)";

Config load(const std::string& text) { return load_text(text, "spec.toml", {}, {.files = false}); }

void expect_mistake(const std::string& from, const std::string& to, const std::vector<std::string>& parts) {
  std::string text = kFile;
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  tests::expect_error(Code::config, parts, [&] { load(text.replace(at, from.size(), to)); });
}

TEST(ShardingSpec, AreReadExpandedAndWrittenBack) {
  const Config c = load(kFile);
  ASSERT_EQ(c.parallel.layer.size(), 2u);
  EXPECT_EQ(c.parallel.layer[0].layers, 2);
  EXPECT_EQ(c.parallel.layer[0].down, "fk");
  EXPECT_EQ(c.parallel.layer[1].stream, "r-");
  const sharding::ModelSharding table = sharding_of(c);  // axes: "data", a, b
  ASSERT_EQ(table.layers.size(), 2u);
  EXPECT_EQ(table.layer(1).at(sharding::Site::qkv), (sharding::LinearSharding{.rows = 2, .cols = 4, .flat = 2}));
  EXPECT_EQ(table.layer(2).at(sharding::Site::out), (sharding::LinearSharding{.rows = 2, .contraction = 4}));
  EXPECT_EQ(table.layer(5), table.layer(2));
  EXPECT_EQ(table.head, (sharding::Spread{.rows = 2}));
  EXPECT_EQ(table.table, (sharding::VocabSpread{.vocab = 4, .flat = 2}));
  EXPECT_EQ(ranks_of_replica(c), 8);
  const Config again = load(to_toml(c));
  EXPECT_EQ(again.parallel.layer, c.parallel.layer);
  EXPECT_EQ(to_toml(again), to_toml(c));
}

TEST(ShardingSpec, AreAnEmptyListWhereThereAreNone) {
  const Config c = load_text("[model]\nn_layer = 2\n", "none.toml", {}, {.files = false});
  EXPECT_NE(to_toml(c).find("layer = []\n"), std::string::npos);
  EXPECT_TRUE(load(to_toml(c)).parallel.layer.empty());
}

TEST(ShardingSpec, OfHeadAndTableFollowTheLastLayer) {
  Config c = load(kFile);
  c.parallel.head.clear();
  c.parallel.table.clear();
  EXPECT_EQ(sharding_of(c).head, (sharding::Spread{.rows = 2}));
  EXPECT_EQ(sharding_of(c).table, (sharding::VocabSpread{.vocab = 4, .flat = 2}));
  c.parallel.head = "rc";
  EXPECT_EQ(sharding_of(c).table, (sharding::VocabSpread{.width = 4, .flat = 2}));
}

TEST(ShardingSpec, ReportWhatIsWrong) {
  expect_mistake("qkv = \"fc\"", "qkvs = \"fc\"", {"parallel.layer 1: unknown key \"qkvs\"", "did you mean \"qkv\""});
  expect_mistake("layers = 2", "layers = \"2\"", {"parallel.layer 1: layers: ", "string \"2\""});
  expect_mistake("out = \"rk\"", "out = \"rv\"", {"table 2: out = \"rv\"", "2 of the letters \"rckf-\""});
  expect_mistake("hidden = \"rc\"\nqkv = \"rc\"", "qkv = \"rc\"", {"table 2: hidden = \"\""});
  expect_mistake("layers = 2", "layers = 7", {"7 layers", "n_layer = 6"});
  expect_mistake("axes = [2, 4]", "axes = [2, 2, 2, 1, 1, 1, 1]", {"one to six axis sizes"});
  expect_mistake("n_head = 8", "n_head = 2", {"n_head = 2", "4 ranks along b"});
  expect_mistake("micro_batch = 4", "micro_batch = 1", {"table 1: micro_batch = 1", "2 ranks along a"});
  expect_mistake("hidden = \"rc\"\nqkv", "hidden = \"rc\"\nschedule = \"rings\"\nqkv", {"\"at_once\" or \"ring\""});
}

}  // namespace
}  // namespace trainer::config
