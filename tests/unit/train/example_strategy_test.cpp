// The example strategy in src/README.md ("Add a strategy") compared with one rank. tests/cli/readme_test.py checks that
// the two texts are equal.
#include "rigs/megatron.h"

namespace trainer::tests {
namespace {

using namespace sharding;

ModelSharding fully_sharded(int64_t replicas, int64_t z_ranks, int64_t n_layer) {
  ModelSharding s;
  s.axes = {{"data", replicas}, {"z", z_ranks}};
  const AxisSet z = s.find("z");
  const LinearSharding gathered{.rows = z, .flat = z};  // each rank has its own rows, and a shard of every matrix
  Layer layer{.stream = {.rows = z}, .attention = {.rows = z}, .mlp = {.rows = z}};
  for (const Site site : {Site::qkv, Site::out, Site::up, Site::down}) layer.at(site) = gathered;
  layer.count = n_layer;
  s.layers = {layer};
  s.head = {.rows = z};
  s.table = {.flat = z};
  return s;
}

TEST(ExampleStrategy, FollowsOneRankAndSendsThePredictedBytes) {
  for (const MegatronLayout& layout : {MegatronLayout{2}, MegatronLayout{2, 2, true, config::Arch::llama},
                                       MegatronLayout{4, 1, true, config::Arch::gpt2, 4}}) {
    SCOPED_TRACE(layout);
    const config::Config c = configure(layout);
    HowToRun how;
    how.sharding = fully_sharded(layout.data, layout.tensor, c.model.n_layer);
    const Result one = train(on_one_rank(c), DType::f64, 10), many = train(c, DType::f64, 10, how);
    EXPECT_TRUE(many.start == one.start) << "initial weights";
    expect_same_run(many, one);
    const double piece = static_cast<double>(many.optimizer_bytes) / static_cast<double>(one.optimizer_bytes);
    EXPECT_LT(piece, 1.0 / static_cast<double>(layout.tensor) + 0.1) << "vectors are whole, and a tenth at most";
    expect_predicted_bytes(many, 10);
  }
}

}  // namespace
}  // namespace trainer::tests
