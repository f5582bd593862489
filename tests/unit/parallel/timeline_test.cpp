// Tests when strategies start collectives and when they wait for them, in numbers of preceding GEMMs, on one rank of a
// mesh whose other ranks do not exist.
#include "unit/parallel/pieces_rig.h"

namespace trainer::pieces {
namespace {

using parallel::Site;

/// An operation: the number of GEMMs before its start, and before the wait for it.
struct Moment {
  double started = 0, waited = -1;
  bool operator==(const Moment&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Moment& m) { return out << m.started << " to " << m.waited; }
/// Operations in the order of their starts, by axis and kind.
using Timeline = std::map<std::string, std::vector<Moment>>;

class Noting final : public comm::Communicator {
 public:
  Noting(comm::Group group, const Meter*& meter, double product, Timeline& timeline)
      : Communicator(std::move(group)), meter_(meter), product_(product), timeline_(timeline) {}

 private:
  struct Wait final : comm::Pending {
    Wait(Noting& owner, Moment& what) : noting(owner), moment(what) {}
    Interval wait() override {
      moment.waited = noting.products();
      return {};
    }
    void abandon() noexcept override {}
    Noting& noting;
    Moment& moment;
  };
  double products() const { return meter_->matmul_flops() / product_; }
  comm::Pending* start(const Request& request) override {
    std::vector<Moment>& moments = timeline_[group().name + " " + std::string(name_of(request.op))];
    moments.reserve(64);  // waits hold pointers into it
    TRAINER_CHECK(moments.size() < moments.capacity(), "{} operations", moments.size());
    moments.push_back({.started = products()});
    waits_.push_back(std::make_unique<Wait>(*this, moments.back()));
    return waits_.back().get();
  }
  const Meter*& meter_;
  const double product_;
  Timeline& timeline_;
  std::vector<std::unique_ptr<Wait>> waits_;
};

/// The first of N ranks, with GEMMs of the given number of FLOPs.
class NotingWorld final : public comm::World {
 public:
  NotingWorld(int size, const Meter*& meter, double product, Timeline& timeline)
      : World(0, size, 0, 1), inner_(comm::dry_world(size)), meter_(meter), product_(product), timeline_(timeline) {}
  std::string_view transport() const override { return "noting"; }
  comm::Control& control() override { return inner_->control(); }
  std::unique_ptr<comm::Communicator> communicator(device::Device& device, comm::Group group,
                                                   comm::Purpose purpose) override {
    if (purpose == comm::Purpose::control) return inner_->communicator(device, std::move(group), purpose);
    return std::make_unique<Noting>(std::move(group), meter_, product_, timeline_);
  }

 private:
  const std::unique_ptr<comm::World> inner_;
  const Meter*& meter_;
  const double product_;
  Timeline& timeline_;
};

constexpr int64_t kHidden = 24, kInner = 48;

/// Forward and backward of the two linears of a feed-forward layer. `product`: FLOPs of each GEMM.
Timeline feed_forward(const config::Config& c, int ranks, double product, bool overlap) {
  Timeline timeline;
  const Meter* meter = nullptr;
  NotingWorld world(ranks, meter, product, timeline);
  Rig rig(world, on_ranks(c, ranks, 0), DType::f64, overlap);
  meter = &rig.meter;
  const int group = rig.store.add_group("block");
  const auto up = rig.strategy->linear(0, group, {.site = Site::up, .in = kHidden, .parts = {{"up", kInner}}});
  const auto down = rig.strategy->linear(0, group, {.site = Site::down, .in = kInner, .parts = {{"down", kHidden}}});
  rig.store.allocate(true);
  rig.store.weights().set_gather_ahead(overlap);
  GradSink sink(rig.store, {.overlap = overlap});
  sink.prepare(rig.device);
  const auto pass = [&](Exec& ex) {
    const parallel::Tile tile = rig.tile(kHidden);
    const Scratch x = ex.take("x", {tile.rows, tile.cols}, rig.type), dy = ex.take("dy", x.tensor().shape, rig.type);
    sink.begin_step();
    sink.begin_micro(true);
    const Scratch h = up->forward(ex, rig.batch.rows(), x, {}), y = down->forward(ex, rig.batch.rows(), h, {});
    const Scratch dh = down->backward(ex, rig.batch.rows(), dy, h, {}, sink, false),
                  dx = up->backward(ex, rig.batch.rows(), dh, x, {}, sink, false);
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

void expect_timeline(const config::Config& c, int ranks, double product, const Timeline& expected) {
  EXPECT_EQ(feed_forward(c, ranks, product, true), expected);
  const Timeline blocking = feed_forward(c, ranks, product, false);
  EXPECT_EQ(blocking.size(), expected.size());
  for (const auto& [what, moments] : blocking) {
    EXPECT_EQ(moments.size(), expected.at(what).size()) << what;
    for (const Moment& moment : moments) EXPECT_EQ(moment.started, moment.waited) << what;
  }
}

TEST(Timeline, OfMegatronSumsDxUnderDw) {
  config::Config c;
  c.parallel.strategy = config::StrategyName::megatron_1d;
  c.parallel.tensor = 2;
  constexpr double kProduct = 2.0 * kRows * kHidden * (kInner / 2);
  // Two GEMMs forward; dX and dW of down, then of up. In the backward pass of up, gathering x again overlaps with dX.
  expect_timeline(c, 2, kProduct,
                  {{"tensor all_gather", {{0, 0}, {2, 2}, {4, 5}}}, {"tensor reduce_scatter", {{2, 2}, {5, 6}}}});
  c.parallel.sequence_parallel = false;
  expect_timeline(c, 2, kProduct, {{"tensor all_reduce", {{2, 2}, {5, 6}}}});
}

TEST(Timeline, OfAxonnGathersAndScattersUnderOtherLinears) {
  config::Config c;
  c.parallel.strategy = config::StrategyName::axonn_4d;
  c.parallel.grid = {2, 2, 2};
  expect_timeline(c, 8, 2.0 * (kRows / 2) * (kHidden / 2) * (kInner / 2),
                  // Weights: the first gather blocks immediately; the second overlaps with the first GEMM, and is kept
                  // for its own backward pass, whose GEMMs overlap with gathering the first again.
                  {{"z all_gather", {{0, 0}, {0, 1}, {2, 4}}},
                   // All-reduces of results block immediately, those of dX are waited for after dW.
                   {"y all_reduce", {{1, 1}, {3, 4}}},
                   {"x all_reduce", {{2, 2}, {5, 6}}},
                   // Reduce-scatters of dW are waited for after the last GEMM.
                   {"z reduce_scatter", {{4, 6}, {6, 6}}}});
}

TEST(Timeline, OfOptimusBroadcastsUnderTheGemmBeforeAndSumsUnderTheNext) {
  constexpr int64_t kSide = 3;
  config::Config c;
  c.parallel.strategy = config::StrategyName::optimus_2d;
  c.parallel.mesh = {kSide, kSide};
  c.parallel.panels = config::Panels::ring;
  // Six GEMMs of blocks forward and twelve backward.
  expect_timeline(
      c, kSide * kSide, 2.0 * (kRows / kSide) * (kHidden / kSide) * (kInner / kSide),
      // Weights: of each three broadcasts, the first is waited for immediately, the other two overlap with earlier
      // GEMMs. In the backward pass of down, a step has two GEMMs.
      {{"row broadcast",
        {{0, 0}, {0, 1}, {1, 2}, {3, 3}, {3, 4}, {4, 5}, {6, 6}, {6, 8}, {8, 10}, {12, 12}, {12, 13}, {13, 14}}},
       // Inputs of up; dY of down, once for both of its gradients; inputs of up again, the first during dX.
       {"col broadcast", {{0, 0}, {0, 1}, {1, 2}, {6, 6}, {6, 8}, {8, 10}, {12, 15}, {15, 16}, {16, 17}}},
       // Results of down; dX of up, the last two overlapping with the GEMMs of dW.
       {"col reduce", {{4, 5}, {5, 6}, {6, 6}, {13, 14}, {14, 18}, {15, 18}}},
       // dW of down, the last two overlapping with all GEMMs of up; dW of up.
       {"row reduce", {{8, 11}, {10, 18}, {12, 18}, {16, 17}, {17, 18}, {18, 18}}}});
}

}  // namespace
}  // namespace trainer::pieces
