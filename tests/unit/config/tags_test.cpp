// Tables of tags: read from a file and written back, expanded, and what is wrong with them.
#include "config/tags.h"

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

Config load(const std::string& text) { return load_text(text, "tags.toml", {}, {.files = false}); }

void expect_mistake(const std::string& from, const std::string& to, const std::vector<std::string>& parts) {
  std::string text = kFile;
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  tests::expect_error(Code::config, parts, [&] { load(text.replace(at, from.size(), to)); });
}

TEST(Tags, AreReadExpandedAndWrittenBack) {
  const Config c = load(kFile);
  ASSERT_EQ(c.parallel.layer.size(), 2u);
  EXPECT_EQ(c.parallel.layer[0].layers, 2);
  EXPECT_EQ(c.parallel.layer[0].down, "fk");
  EXPECT_EQ(c.parallel.layer[1].stream, "r-");
  const TagTable table = tag_table(c);
  ASSERT_EQ(table.layers.size(), 6u);
  EXPECT_EQ(table.layers[1].qkv, "fc");
  EXPECT_EQ(table.layers[2].out, "rk");
  EXPECT_EQ(table.layers[5].out, "rk");
  EXPECT_EQ(table.last, "r-");
  EXPECT_EQ(ranks_of_replica(c), 8);
  const Config again = load(to_toml(c));
  EXPECT_EQ(again.parallel.layer, c.parallel.layer);
  EXPECT_EQ(to_toml(again), to_toml(c));
}

TEST(Tags, AreAnEmptyListWhereThereAreNone) {
  const Config c = load_text("[model]\nn_layer = 2\n", "none.toml", {}, {.files = false});
  EXPECT_NE(to_toml(c).find("layer = []\n"), std::string::npos);
  EXPECT_TRUE(load(to_toml(c)).parallel.layer.empty());
}

TEST(Tags, OfHeadAndTableFollowTheLastLayer) {
  Config c = load(kFile);
  c.parallel.head.clear();
  c.parallel.table.clear();
  EXPECT_EQ(tag_table(c).last, "r-");
  EXPECT_EQ(tag_table(c).vocab, "fv");
  c.parallel.head = "rc";
  EXPECT_EQ(tag_table(c).vocab, "fh");
}

TEST(Tags, SayWhatIsWrong) {
  expect_mistake("qkv = \"fc\"", "qkvs = \"fc\"", {"\"qkvs\" in table 1", "did you mean \"qkv\""});
  expect_mistake("layers = 2", "layers = \"2\"", {"string \"2\"", "layers in table 1"});
  expect_mistake("out = \"rk\"", "out = \"rv\"", {"table 2: out = \"rv\"", "2 of the letters \"rckf-\""});
  expect_mistake("hidden = \"rc\"\nqkv = \"rc\"", "qkv = \"rc\"", {"table 2: hidden = \"\""});
  expect_mistake("layers = 2", "layers = 7", {"7 layers", "n_layer = 6"});
  expect_mistake("axes = [2, 4]", "axes = [2, 2, 2, 1, 1, 1, 1]", {"one to 6 extents"});
  expect_mistake("n_head = 8", "n_head = 2", {"n_head = 2", "4 ranks along b"});
  expect_mistake("micro_batch = 4", "micro_batch = 1", {"blocks.0: micro_batch = 1", "2 ranks along a"});
}

TEST(Layouts, AreEnumeratedUnderTheKeysThatAreGiven) {
  std::string broken;
  const auto count = [&](const std::vector<std::string>& sets, int64_t devices) {
    broken.clear();
    const Config c =
        load_text("[model]\nn_head = 8\nd_model = 64\n[train]\nglobal_batch = 8\n", "x.toml", sets, {.files = false});
    std::map<std::string, int> by_strategy;
    for (const Config& each : enumerate_layouts(c, devices, broken)) {
      EXPECT_EQ(ranks_of_replica(each) * each.parallel.data, devices);
      EXPECT_TRUE(wants_tags(each) || layout_fits(each));
      EXPECT_EQ(each.train.global_batch % (each.train.micro_batch * each.parallel.data), 0);
      ++by_strategy[each.parallel.strategy];
    }
    return by_strategy;
  };
  // data 1, 2, 4 with 4, 3, 2 micro-batches; Megatron with and without sequence parallelism, of one rank once.
  const auto all = count({}, 4);
  EXPECT_EQ(all.at("megatron-1d"), 4 * 2 + 3 * 2 + 2);
  EXPECT_EQ(all.at("optimus-2d"), 2 * 3) << "two kinds of panels; a micro-batch of 1 does not divide over two rows";
  EXPECT_EQ(all.at("autoddl"), 4 + 3);
  const auto given = count({"parallel.strategy=megatron-1d", "parallel.tensor=2", "train.micro_batch=2"}, 4);
  EXPECT_EQ(given.size(), 1u);
  EXPECT_EQ(given.at("megatron-1d"), 2);
  EXPECT_TRUE(count({"parallel.strategy=megatron-1d"}, 3).empty());
  EXPECT_NE(broken.find("n_head = 8 heads do not divide over tensor = 3"), std::string::npos) << broken;
}

TEST(AxisLists, HaveAnAxisForTheRanksOfANode) {
  using Lists = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(axis_lists(4, 1), (Lists{{2, 2}, {4}}));
  for (const std::vector<int64_t>& list : axis_lists(64, 8)) {
    int64_t product = 1, inner = 1;
    for (const int64_t extent : list) product *= extent;
    EXPECT_EQ(product, 64);
    for (size_t i = list.size(); i-- > 0 && inner < 8;) inner *= list[i];
    EXPECT_TRUE(inner == 8 || list.size() == 1);
  }
}

}  // namespace
}  // namespace trainer::config
