// When Optimus-2D starts broadcasts and sums and when it waits for them, on one rank of a square whose other ranks are
// not there: counted in products that ran before.
#include "unit/parallel/timeline_rig.h"

namespace trainer::pieces {
namespace {

using parallel::Site;

constexpr int64_t kSide = 3, kHidden = 24, kInner = 48;
/// FLOPs of every product of blocks below.
constexpr double kProduct = 2.0 * (kRows / kSide) * (kHidden / kSide) * (kInner / kSide);

/// Forward and backward of the two linears of a feed-forward layer on 3 x 3, six products of blocks forward and twelve
/// backward.
Timeline feed_forward(bool overlap) {
  config::Config c;
  c.parallel.strategy = "optimus-2d";
  c.parallel.mesh = {kSide, kSide};
  c.parallel.panels = "ring";
  Timeline timeline;
  const Meter* meter = nullptr;
  NotingWorld world(kSide * kSide, meter, kProduct, timeline);
  Rig rig(world, on_ranks(c, kSide * kSide, 0), DType::f64, overlap);
  meter = &rig.meter;
  const int group = rig.store.add_group("block");
  const auto up = rig.strategy->linear(0, group, {.site = Site::up, .in = kHidden, .parts = {{"up", kInner}}});
  const auto down = rig.strategy->linear(0, group, {.site = Site::down, .in = kInner, .parts = {{"down", kHidden}}});
  rig.store.allocate(true);
  GradSink sink(rig.store, {.overlap = overlap});
  sink.prepare(rig.device);
  sink.begin_step();
  sink.begin_micro(true);
  Exec& ex = rig.ex;
  const Scratch x = ex.take("x", {kRows / kSide, kHidden / kSide}, rig.type),
                dy = ex.take("dy", x.tensor().shape, rig.type);
  const Scratch h = up->forward(ex, rig.batch.rows(), x, {}), y = down->forward(ex, rig.batch.rows(), h, {});
  const Scratch dh = down->backward(ex, rig.batch.rows(), dy, h, {}, sink),
                dx = up->backward(ex, rig.batch.rows(), dh, x, {}, sink);
  sink.end_group(ex, group);
  sink.end_micro(ex);
  return timeline;
}

TEST(OptimusTimeline, BroadcastsRunUnderTheProductBeforeTheirsAndSumsUnderTheNext) {
  const Timeline found = feed_forward(true);
  EXPECT_EQ(found.size(), 4u);
  // Blocks of weights: of each three, the first is waited for at once, the others come under the products before.
  // Backward of down, a step has two products.
  EXPECT_EQ(
      found.at("row broadcast"),
      (std::vector<Moment>{
          {0, 0}, {0, 1}, {1, 2}, {3, 3}, {3, 4}, {4, 5}, {6, 6}, {6, 8}, {8, 10}, {12, 12}, {12, 13}, {13, 14}}));
  // Inputs of up; dY of down, once for both of its gradients; inputs of up again, whose first comes under those of dX.
  EXPECT_EQ(found.at("col broadcast"),
            (std::vector<Moment>{{0, 0}, {0, 1}, {1, 2}, {6, 6}, {6, 8}, {8, 10}, {12, 15}, {15, 16}, {16, 17}}));
  // Results of down; dX of up, the last two under the products of dW.
  EXPECT_EQ(found.at("col reduce"), (std::vector<Moment>{{4, 5}, {5, 6}, {6, 6}, {13, 14}, {14, 18}, {15, 18}}));
  // dW of down, the last two under all products of up; of up.
  EXPECT_EQ(found.at("row reduce"), (std::vector<Moment>{{8, 11}, {10, 18}, {12, 18}, {16, 17}, {17, 18}, {18, 18}}));
}

TEST(OptimusTimeline, NothingRunsUnderProductsWithoutOverlap) {
  const Timeline found = feed_forward(false);
  EXPECT_EQ(found.at("row broadcast").size(), 12u);
  EXPECT_EQ(found.at("col reduce").size(), 6u);
  for (const auto& [what, moments] : found)
    for (const Moment& moment : moments) EXPECT_EQ(moment.started, moment.waited) << what;
}

}  // namespace
}  // namespace trainer::pieces
