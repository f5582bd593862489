// When AxoNN-4D starts its collectives and when it waits for them, on one rank of a grid whose other ranks are not
// there: counted in products that ran before.
#include "parallel/axonn4d.h"
#include "unit/parallel/pieces_rig.h"

namespace trainer::pieces {
namespace {

using parallel::Axonn4D;
using parallel::Site;

constexpr int64_t kHidden = 24, kInner = 48;
/// FLOPs of every product below on a rank of 2 x 2 x 2.
constexpr double kProduct = 2.0 * (kRows / 2) * (kHidden / 2) * (kInner / 2);

/// One operation: how many products ran before its start, and before the wait for it.
struct Moment {
  double started = 0, waited = -1;
  bool operator==(const Moment&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Moment& m) { return out << m.started << " to " << m.waited; }
/// In order of their starts, by axis and operation.
using Timeline = std::map<std::string, std::vector<Moment>>;

class Noting final : public comm::Communicator {
 public:
  Noting(comm::Group group, const Meter*& meter, Timeline& timeline)
      : Communicator(std::move(group)), meter_(meter), timeline_(timeline) {}

 private:
  struct Wait final : comm::Pending {
    Wait(Noting& owner, Moment& what) : noting(owner), moment(what) {}
    void wait() override { moment.waited = noting.products(); }
    void abandon() noexcept override {}
    Noting& noting;
    Moment& moment;
  };
  double products() const { return meter_->matmul_flops() / kProduct; }
  comm::Pending* start(const Request& request) override {
    std::vector<Moment>& moments = timeline_[group().name + " " + std::string(name_of(request.op))];
    moments.reserve(64);  // waits point into it
    TRAINER_CHECK(moments.size() < moments.capacity(), "{} operations", moments.size());
    moments.push_back({.started = products()});
    waits_.push_back(std::make_unique<Wait>(*this, moments.back()));
    return waits_.back().get();
  }
  const Meter*& meter_;
  Timeline& timeline_;
  std::vector<std::unique_ptr<Wait>> waits_;
};

/// The first of so many ranks.
class NotingWorld final : public comm::World {
 public:
  NotingWorld(int size, const Meter*& meter, Timeline& timeline)
      : World(0, size, 0, 1), inner_(comm::dry_world(size)), meter_(meter), timeline_(timeline) {}
  std::string_view transport() const override { return "noting"; }
  comm::Control& control() override { return inner_->control(); }
  std::unique_ptr<comm::Communicator> communicator(device::Device& device, comm::Group group,
                                                   comm::Lane lane) override {
    if (group.control) return inner_->communicator(device, std::move(group), lane);
    return std::make_unique<Noting>(std::move(group), meter_, timeline_);
  }
  void configure(const comm::WorldOptions&) override {}
  void fail(Code, const std::string&) noexcept override {}
  bool meet(double) noexcept override { return true; }
  int64_t bytes_sent() const override { return 0; }

 private:
  const std::unique_ptr<comm::World> inner_;
  const Meter*& meter_;
  Timeline& timeline_;
};

/// Forward and backward of the two linears of a feed-forward layer on 2 x 2 x 2.
Timeline feed_forward(bool overlap) {
  config::Config c;
  c.parallel.grid = {2, 2, 2};
  c.parallel.overlap_all_reduce = overlap;
  Timeline timeline;
  const Meter* meter = nullptr;
  NotingWorld world(8, meter, timeline);
  Rig rig(world, Axonn4D::mesh_shape(8, c.parallel, 0),
          [&](mesh::Mesh& mesh, ParamStore& store) { return std::make_unique<Axonn4D>(mesh, store, c); });
  meter = &rig.meter;
  const int group = rig.store.add_group("block");
  const auto up = rig.strategy->linear(0, group, {.site = Site::up, .in = kHidden, .parts = {{"up", kInner}}});
  const auto down = rig.strategy->linear(0, group, {.site = Site::down, .in = kInner, .parts = {{"down", kHidden}}});
  rig.store.allocate(true);
  rig.store.weights().gather_ahead(overlap);
  GradSink sink(rig.store, {.overlap = overlap});
  sink.prepare(rig.device);
  const auto pass = [&](Exec& ex) {
    const Scratch x = ex.take("x", {kRows / 2, kHidden / 2}, rig.type), dy = ex.take("dy", x.tensor().shape, rig.type);
    sink.begin_step();
    sink.begin_micro(true);
    const Scratch h = up->forward(ex, rig.batch.rows(), x, {}), y = down->forward(ex, rig.batch.rows(), h, {});
    const Scratch dh = down->backward(ex, rig.batch.rows(), dy, h, {}, sink),
                  dx = up->backward(ex, rig.batch.rows(), dh, x, {}, sink);
    sink.group_done(ex, group);
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
