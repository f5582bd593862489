#include "config/layout_rules.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trainer::config {
namespace {

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

std::string broken(Config c, int64_t tensor) {
  c.parallel.tensor = tensor;
  std::string all;
  for (const LayoutRule& rule : layout_rules(c))
    if (!rule.holds) all += rule.text + "\n";
  return all;
}

TEST(LayoutRules, OneRankFitsEverythingAndTakesItself) {
  const Config c = model_of(7, 7, 11, 13);
  EXPECT_TRUE(layout_fits(c));
  EXPECT_EQ(ranks_of_replica(c), 1);
}

TEST(LayoutRules, SayWhatDoesNotDivideAndTheNearestThatDoes) {
  EXPECT_EQ(broken(model_of(12, 12, 48, 120), 5),
            "n_head = 12 heads do not divide over tensor = 5 ranks; tensor = 4 or 6 fits\n"
            "d_ff = 48 does not divide over tensor = 5 ranks; tensor = 4 or 6 fits\n"
            "n_kv_head = 12 heads neither divide over tensor = 5 ranks nor can as "
            "many ranks share each of them; tensor = 4 or 6 fits\n");
  EXPECT_EQ(broken(model_of(12, 12, 18, 128), 4), "d_ff = 18 does not divide over tensor = 4 ranks; tensor = 2 fits\n");
  EXPECT_EQ(broken(model_of(8, 8, 64, 97), 2),
            "vocab_multiple = 97 does not divide over tensor = 2 ranks; tensor = 1 fits\n");
  EXPECT_EQ(broken(model_of(12, 6, 48, 48), 4),
            "n_kv_head = 6 heads neither divide over tensor = 4 ranks nor can as many ranks share each of them; "
            "tensor = 3 or 6 fits\n");
}

TEST(LayoutRules, KeyValueHeadsMayBeSharedByWholeGroupsOfRanks) {
  const Config c = model_of(12, 2, 48, 48);
  for (const int64_t tensor : {1, 2, 4, 6, 12}) EXPECT_EQ(broken(c, tensor), "") << tensor;
  EXPECT_NE(broken(c, 3), "");
}

TEST(LayoutRules, TokenRowsAreCutWithSequenceParallelismOnly) {
  Config c = model_of(8, 8, 64, 128);
  EXPECT_EQ(broken(c, 4), "");
  c.parallel.sequence_parallel = true;
  EXPECT_EQ(broken(c, 4),
            "micro_batch x seq_len = 1 x 30 token rows do not divide over tensor = 4 ranks; "
            "sequence_parallel = false keeps them whole\n");
  c.parallel.tensor = 4;
  EXPECT_FALSE(layout_fits(c));
  EXPECT_THROW(require_layout(c), Error);
}

std::string broken_grid(Config c, std::vector<int64_t> grid) {
  c.parallel.strategy = "axonn-4d";
  c.parallel.grid = std::move(grid);
  std::string all;
  for (const LayoutRule& rule : layout_rules(c))
    if (!rule.holds) all += rule.text + "\n";
  EXPECT_EQ(layout_fits(c), all.empty());
  return all;
}

TEST(LayoutRules, OfAGridNameTheNearestOneThatFits) {
  Config c = model_of(12, 12, 48, 48);
  c.model.d_model = 24;
  c.train.micro_batch = 4;
  EXPECT_EQ(broken_grid(c, {3, 4, 2}), "");
  EXPECT_EQ(
      broken_grid(c, {5, 1, 1}),
      "n_head = 12 heads do not divide over x = 5 ranks; grid = [6, 1, 1] fits\n"
      "d_ff = 48 does not divide over x = 5 ranks; grid = [6, 1, 1] fits\n"
      "n_kv_head = 12 heads neither divide over x = 5 ranks nor can as many ranks share each of them; grid = [6, 1, 1] "
      "fits\n"
      "vocab_multiple = 48 does not divide over x = 5 ranks; grid = [6, 1, 1] fits\n");
  // As many ranks, if that can be.
  EXPECT_EQ(broken_grid(c, {1, 1, 8}),
            "micro_batch = 4 sequences do not divide over z = 8 ranks; grid = [1, 2, 4] fits\n");
  EXPECT_EQ(broken_grid(c, {1, 16, 1}), "d_model = 24 does not divide over y = 16 ranks; grid = [1, 8, 2] fits\n");
  c.model.n_kv_head = 2;
  EXPECT_EQ(broken_grid(c, {4, 2, 1}), "");
  EXPECT_NE(broken_grid(c, {3, 2, 1}), "");
  c.parallel.strategy = "axonn-4d";
  c.parallel.grid = {4, 2, 3};
  EXPECT_EQ(ranks_of_replica(c), 24);
  EXPECT_EQ(replica_text(c), "grid = [4, 2, 3]");
}

std::string broken_mesh(Config c, std::vector<int64_t> mesh, std::vector<int64_t> node_tile = {1, 1}) {
  c.parallel.strategy = "optimus-2d";
  c.parallel.mesh = std::move(mesh);
  c.parallel.node_tile = std::move(node_tile);
  std::string all;
  for (const LayoutRule& rule : layout_rules(c))
    if (!rule.holds) all += rule.text + "\n";
  EXPECT_EQ(layout_fits(c), all.empty());
  return all;
}

TEST(LayoutRules, OfASquareMeshNameTheNearestOneThatFits) {
  Config c = model_of(12, 12, 48, 48);
  c.model.d_model = 24;
  c.train.micro_batch = 4;
  for (const auto& mesh : {std::vector<int64_t>{1, 1}, {2, 2}, {4, 4}, {2, 2, 2}, {1, 1, 4}})
    EXPECT_EQ(broken_mesh(c, mesh), "");
  EXPECT_EQ(broken_mesh(c, {2, 3}), "mesh = [2, 3] is not square; mesh = [2, 2, 2] fits\n");
  EXPECT_EQ(broken_mesh(c, {4, 2, 3}), "mesh = [4, 2, 3] is not square; mesh = [4, 4] fits\n");
  EXPECT_EQ(broken_mesh(c, {5, 5}),
            "n_head = 12 heads do not divide over q = 5 columns of ranks; mesh = [4, 4] fits\n"
            "d_model = 24 does not divide over q = 5 columns of ranks; mesh = [4, 4] fits\n"
            "d_ff = 48 does not divide over q = 5 columns of ranks; mesh = [4, 4] fits\n"
            "n_kv_head = 12 heads neither divide over q = 5 columns of ranks nor can as many of them share each; "
            "mesh = [4, 4] fits\n"
            "vocab_multiple = 48 does not divide over q = 5 columns of ranks; mesh = [4, 4] fits\n"
            "micro_batch = 4 sequences do not divide over q = 5 rows of ranks; mesh = [4, 4] fits\n");
  EXPECT_EQ(broken_mesh(c, {3, 3}),
            "micro_batch = 4 sequences do not divide over q = 3 rows of ranks; mesh = [2, 2, 2] fits\n");
  EXPECT_EQ(broken_mesh(c, {2, 2, 4}),
            "micro_batch = 4 sequences do not divide over q x depth = 2 x 4 rows of ranks; mesh = [4, 4] fits\n");
  c.model.n_kv_head = 2;
  EXPECT_EQ(broken_mesh(c, {4, 4}), "") << "two ranks share a head";
  c.train.micro_batch = 3;
  EXPECT_EQ(broken_mesh(c, {3, 3}),
            "n_kv_head = 2 heads neither divide over q = 3 columns of ranks nor can as many of them share each; "
            "mesh = [1, 1, 3] fits\n");
  c.parallel.strategy = "optimus-2d";
  c.parallel.mesh = {3, 3};
  EXPECT_EQ(ranks_of_replica(c), 9);
  EXPECT_EQ(depth_of_replica(c), 1);
  EXPECT_EQ(replica_text(c), "mesh = [3, 3]");
  c.parallel.mesh = {2, 2, 3};
  EXPECT_EQ(ranks_of_replica(c), 12);
  EXPECT_EQ(depth_of_replica(c), 3);
  EXPECT_EQ(replica_text(c), "mesh = [2, 2, 3]");
  c.parallel.strategy = "axonn-4d";
  EXPECT_EQ(depth_of_replica(c), 1);
}

TEST(LayoutRules, OfTilesAskThatTheyDivideTheMeshAndShareHeadsEvenly) {
  Config c = model_of(12, 12, 48, 48);
  c.model.d_model = 24;
  c.train.micro_batch = 12;
  for (const auto& tile : {std::vector<int64_t>{2, 2}, {4, 1}, {1, 4}, {4, 4}})
    EXPECT_EQ(broken_mesh(c, {4, 4}, tile), "");
  EXPECT_EQ(broken_mesh(c, {4, 4}, {3, 2}),
            "node_tile = [3, 2] does not divide 4 x 4 ranks; node_tile = [2, 2] fits\n");
  EXPECT_EQ(broken_mesh(c, {2, 2}, {1, 8}),
            "node_tile = [1, 8] does not divide 2 x 2 ranks; node_tile = [1, 2] fits\n");
  c.model.n_kv_head = 2;
  for (const auto& tile : {std::vector<int64_t>{6, 1}, {1, 3}, {1, 6}}) EXPECT_EQ(broken_mesh(c, {6, 6}, tile), "");
  EXPECT_EQ(broken_mesh(c, {6, 6}, {3, 2}),
            "node_tile = [3, 2]: ranks that share one of n_kv_head = 2 heads are spread unevenly over 3 tiles; "
            "node_tile = [3, 1] fits\n");
}

}  // namespace
}  // namespace trainer::config
