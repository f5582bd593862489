#include "config/layout_rules.h"

#include "rigs/messages.h"

namespace trainer::config {
namespace {

using Extents = std::vector<int64_t>;

Config model_of(int64_t heads, int64_t kv_heads, int64_t d_ff, int64_t vocab_multiple) {
  Config c;
  c.model.n_head = heads;
  c.model.n_kv_head = kv_heads;
  c.model.d_ff = d_ff;
  c.model.vocab_multiple = vocab_multiple;
  c.model.seq_len = 30;
  c.train.micro_batch = 1;
  c.parallel.strategy = "megatron-1d";
  c.parallel.sequence_parallel = false;
  return c;
}
Config on_line(Config c, int64_t tensor) {
  c.parallel.tensor = tensor;
  return c;
}
Config on_grid(Config c, const Extents& grid) {
  c.parallel.strategy = "axonn-4d";
  c.parallel.grid = grid;
  return c;
}
Config on_mesh(Config c, const Extents& mesh, const Extents& node_tile = {1, 1}) {
  c.parallel.strategy = "optimus-2d";
  c.parallel.mesh = mesh;
  c.parallel.node_tile = node_tile;
  return c;
}

/// The rules that do not hold name these extents, in this order, and all of them the same remedy.
void expect_broken(const Config& c, const std::string& remedy, const std::vector<std::string>& extents) {
  SCOPED_TRACE(replica_text(c));
  std::vector<std::string> broken;
  for (const LayoutRule& rule : layout_rules(c))
    if (!rule.holds) broken.push_back(rule.text);
  EXPECT_EQ(layout_fits(c), broken.empty());
  ASSERT_EQ(broken.size(), extents.size()) << (broken.empty() ? "" : broken.front());
  for (size_t i = 0; i < broken.size(); ++i) tests::expect_parts(broken[i], {extents[i], "; " + remedy});
}
void expect_fits(const Config& c) { expect_broken(c, "", {}); }

TEST(LayoutRules, OneRankFitsEverythingAndTakesItself) {
  const Config c = model_of(7, 7, 11, 13);
  EXPECT_TRUE(layout_fits(c));
  EXPECT_EQ(ranks_of_replica(c), 1);
}

TEST(LayoutRules, SayWhatDoesNotDivideAndTheNearestThatDoes) {
  expect_broken(on_line(model_of(12, 12, 48, 120), 5), "tensor = 4 or 6 fits",
                {"n_head = 12", "d_ff = 48", "n_kv_head = 12"});
  expect_broken(on_line(model_of(12, 12, 18, 128), 4), "tensor = 2 fits", {"d_ff = 18"});
  expect_broken(on_line(model_of(8, 8, 64, 97), 2), "tensor = 1 fits", {"vocab_multiple = 97"});
  expect_broken(on_line(model_of(12, 6, 48, 48), 4), "tensor = 3 or 6 fits", {"n_kv_head = 6"});
}

TEST(LayoutRules, KeyValueHeadsMayBeSharedByWholeGroupsOfRanks) {
  const Config c = model_of(12, 2, 48, 48);
  for (const int64_t tensor : {1, 2, 4, 6, 12}) expect_fits(on_line(c, tensor));
  EXPECT_FALSE(layout_fits(on_line(c, 3)));
}

TEST(LayoutRules, TokenRowsAreCutWithSequenceParallelismOnly) {
  Config c = on_line(model_of(8, 8, 64, 128), 4);
  expect_fits(c);
  c.parallel.sequence_parallel = true;
  expect_broken(c, "sequence_parallel = false", {"micro_batch x seq_len = 1 x 30"});
  EXPECT_THROW(require_layout(c), Error);
}

TEST(LayoutRules, OfAGridNameTheNearestOneThatFits) {
  Config c = model_of(12, 12, 48, 48);
  c.model.d_model = 24;
  c.train.micro_batch = 4;
  expect_fits(on_grid(c, {3, 4, 2}));
  expect_broken(on_grid(c, {5, 1, 1}), "grid = [6, 1, 1] fits",
                {"n_head = 12", "d_ff = 48", "n_kv_head = 12", "vocab_multiple = 48"});
  // As many ranks, if that can be.
  expect_broken(on_grid(c, {1, 1, 8}), "grid = [1, 2, 4] fits", {"micro_batch = 4"});
  expect_broken(on_grid(c, {1, 16, 1}), "grid = [1, 8, 2] fits", {"d_model = 24"});
  c.model.n_kv_head = 2;
  expect_fits(on_grid(c, {4, 2, 1}));
  EXPECT_FALSE(layout_fits(on_grid(c, {3, 2, 1})));
  EXPECT_EQ(ranks_of_replica(on_grid(c, {4, 2, 3})), 24);
  EXPECT_EQ(depth_of_replica(on_grid(c, {4, 2, 3})), 1);
  EXPECT_EQ(replica_text(on_grid(c, {4, 2, 3})), "grid = [4, 2, 3]");
}

TEST(LayoutRules, OfASquareMeshNameTheNearestOneThatFits) {
  Config c = model_of(12, 12, 48, 48);
  c.model.d_model = 24;
  c.train.micro_batch = 4;
  for (const auto& mesh : {Extents{1, 1}, {2, 2}, {4, 4}, {2, 2, 2}, {1, 1, 4}}) expect_fits(on_mesh(c, mesh));
  expect_broken(on_mesh(c, {2, 3}), "mesh = [2, 2, 2] fits", {"mesh = [2, 3]"});
  expect_broken(on_mesh(c, {4, 2, 3}), "mesh = [4, 4] fits", {"mesh = [4, 2, 3]"});
  expect_broken(
      on_mesh(c, {5, 5}), "mesh = [4, 4] fits",
      {"n_head = 12", "d_model = 24", "d_ff = 48", "n_kv_head = 12", "vocab_multiple = 48", "micro_batch = 4"});
  expect_broken(on_mesh(c, {3, 3}), "mesh = [2, 2, 2] fits", {"micro_batch = 4"});
  expect_broken(on_mesh(c, {2, 2, 4}), "mesh = [4, 4] fits", {"micro_batch = 4"});
  c.model.n_kv_head = 2;
  expect_fits(on_mesh(c, {4, 4}));  // two ranks share a head
  c.train.micro_batch = 3;
  expect_broken(on_mesh(c, {3, 3}), "mesh = [1, 1, 3] fits", {"n_kv_head = 2"});
  for (const auto& [mesh, depth] : {std::pair{Extents{3, 3}, 1}, {{2, 2, 3}, 3}}) {
    EXPECT_EQ(ranks_of_replica(on_mesh(c, mesh)), mesh[0] * mesh[1] * depth);
    EXPECT_EQ(depth_of_replica(on_mesh(c, mesh)), depth);
    EXPECT_EQ(replica_text(on_mesh(c, mesh)), depth == 1 ? "mesh = [3, 3]" : "mesh = [2, 2, 3]");
  }
}

TEST(LayoutRules, OfTilesAskThatTheyDivideTheMeshAndShareHeadsEvenly) {
  Config c = model_of(12, 12, 48, 48);
  c.model.d_model = 24;
  c.train.micro_batch = 12;
  for (const auto& tile : {Extents{2, 2}, {4, 1}, {1, 4}, {4, 4}}) expect_fits(on_mesh(c, {4, 4}, tile));
  expect_broken(on_mesh(c, {4, 4}, {3, 2}), "node_tile = [2, 2] fits", {"node_tile = [3, 2]"});
  expect_broken(on_mesh(c, {2, 2}, {1, 8}), "node_tile = [1, 2] fits", {"node_tile = [1, 8]"});
  c.model.n_kv_head = 2;
  for (const auto& tile : {Extents{6, 1}, {1, 3}, {1, 6}}) expect_fits(on_mesh(c, {6, 6}, tile));
  expect_broken(on_mesh(c, {6, 6}, {3, 2}), "node_tile = [3, 1] fits", {"n_kv_head = 2"});
}

}  // namespace
}  // namespace trainer::config
