// When AxoNN-4D starts its collectives and when it waits for them, on one rank of a grid whose other ranks are not
// there: counted in products that ran before.
#include "unit/parallel/timeline_rig.h"

namespace trainer::pieces {
namespace {

using parallel::Site;

constexpr int64_t kHidden = 24, kInner = 48;
/// FLOPs of every product below on a rank of 2 x 2 x 2.
constexpr double kProduct = 2.0 * (kRows / 2) * (kHidden / 2) * (kInner / 2);

/// Forward and backward of the two linears of a feed-forward layer on 2 x 2 x 2.
Timeline feed_forward(bool overlap) {
  config::Config c;
  c.parallel.strategy = "axonn-4d";
  c.parallel.grid = {2, 2, 2};
  c.parallel.overlap_all_reduce = overlap;
  Timeline timeline;
  const Meter* meter = nullptr;
  NotingWorld world(8, meter, kProduct, timeline);
  Rig rig(world, on_ranks(c, 8, 0));
  meter = &rig.meter;
  const int group = rig.store.add_group("block");
  const auto up = rig.strategy->linear(0, group, {.site = Site::up, .in = kHidden, .parts = {{"up", kInner}}});
  const auto down = rig.strategy->linear(0, group, {.site = Site::down, .in = kInner, .parts = {{"down", kHidden}}});
  rig.store.allocate(true);
  rig.store.weights().set_gather_ahead(overlap);
  GradSink sink(rig.store, {.overlap = overlap});
  sink.prepare(rig.device);
  const auto pass = [&](Exec& ex) {
    const Scratch x = ex.take("x", {kRows / 2, kHidden / 2}, rig.type), dy = ex.take("dy", x.tensor().shape, rig.type);
    sink.begin_step();
    sink.begin_micro(true);
    const Scratch h = up->forward(ex, rig.batch.rows(), x, {}), y = down->forward(ex, rig.batch.rows(), h, {});
    const Scratch dh = down->backward(ex, rig.batch.rows(), dy, h, {}, sink),
                  dx = up->backward(ex, rig.batch.rows(), dh, x, {}, sink);
    sink.end_group(ex, group);
    sink.end_micro(ex);
  };
  device::DryDevice dry(1);
  Meter planned;
  Exec plan{dry, rig.arena, planned};
  rig.store.weights().record("pass", [&] { pass(plan); });
  rig.store.weights().begin(rig.ex, "pass");
  pass(rig.ex);
  rig.store.weights().end();
  return timeline;
}

TEST(AxonnTimeline, SumsGathersAndScattersRunUnderProducts) {
  const Timeline found = feed_forward(true);
  EXPECT_EQ(found.size(), 4u);
  // Weights: the first is waited for at once; the second comes under the first product and stays for its own backward,
  // under whose products the first comes again.
  EXPECT_EQ(found.at("z all_gather"), (std::vector<Moment>{{0, 0}, {0, 1}, {2, 4}}));
  // Sums of results are waited for at once, those of dX after dW.
  EXPECT_EQ(found.at("y all_reduce"), (std::vector<Moment>{{1, 1}, {3, 4}}));
  EXPECT_EQ(found.at("x all_reduce"), (std::vector<Moment>{{2, 2}, {5, 6}}));
  // Scatters of dW: none before the last product.
  EXPECT_EQ(found.at("z reduce_scatter"), (std::vector<Moment>{{4, 6}, {6, 6}}));
}

TEST(AxonnTimeline, NothingRunsUnderProductsWithoutOverlap) {
  const Timeline found = feed_forward(false);
  EXPECT_EQ(found.at("z all_gather").size(), 3u);
  for (const auto& [what, moments] : found)
    for (const Moment& moment : moments) EXPECT_EQ(moment.started, moment.waited) << what;
}

}  // namespace
}  // namespace trainer::pieces
