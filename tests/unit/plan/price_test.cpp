// The virtual clock that simulates programs.
#include "plan/price.h"

#include <gtest/gtest.h>

#include "comm/communicator.h"

namespace trainer::plan {
namespace {

constexpr double kMicro = 1e-6;

/// Two nodes of four devices; 1 GB/s within a node for each device, 1 GB/s between nodes for all of a node.
Cluster toy() {
  Cluster c;
  c.name = "toy";
  c.devices_per_node = 4;
  c.peaks = {{DType::f32, 1e12}};
  c.intra = {.gb_per_s = 1, .start_us = 10, .hop_us = 1};
  c.inter = {.gb_per_s = 1, .start_us = 20, .hop_us = 2};
  return c;
}

TEST(CollectiveTime, FollowsRingsAndSharesTheLinkOfANode) {
  const Cluster c = toy();
  const auto time = [&](CommOp op, int ranks, int per_node, int64_t payload) {
    return collective_time(c, {.ranks = ranks, .per_node = per_node}, op, DType::f32, payload);
  };
  // 4 MB among four ranks of a node: each sends 3/4 of it in three steps; an all-reduce sends twice that.
  EXPECT_NEAR(time(CommOp::all_gather, 4, 4, 1'000'000).total(), 13 * kMicro + 3e-3, 1e-9);
  EXPECT_NEAR(time(CommOp::reduce_scatter, 4, 4, 1'000'000).total(), 13 * kMicro + 3e-3, 1e-9);
  EXPECT_NEAR(time(CommOp::all_reduce, 4, 4, 1'000'000).total(), 16 * kMicro + 6e-3, 1e-9);
  EXPECT_NEAR(time(CommOp::all_to_all, 4, 4, 250'000).total(), 13 * kMicro + 0.75e-3, 1e-9);
  EXPECT_NEAR(time(CommOp::broadcast, 4, 4, 1'000'000).total(), 13 * kMicro + 4e-3, 1e-9);
  // Two nodes: each of the four devices of a node is in a group of two, which has a quarter of the node's link.
  EXPECT_NEAR(time(CommOp::all_gather, 2, 1, 1'000'000).total(), 22 * kMicro + 8e-3, 1e-9);
  // All eight ranks: the whole link, but at most the rate of a device within its node. Of the ring's seven steps two
  // cross nodes; of an all-reduce's fourteen, four.
  EXPECT_NEAR(time(CommOp::all_gather, 8, 4, 1'000'000).total(), (20 + 5 * 1 + 2 * 2) * kMicro + 3.5e-3, 1e-9);
  EXPECT_NEAR(time(CommOp::all_reduce, 8, 4, 1'000'000).total(), (20 + 10 * 1 + 4 * 2) * kMicro + 7e-3, 1e-9);
  // A tree has two levels within a node and one between nodes; all 20 kB go up and down. A ring sends 35 kB.
  EXPECT_NEAR(time(CommOp::all_reduce, 8, 4, 5000).total(), (20 + 4 * 1 + 2 * 2 + 40) * kMicro, 1e-9);
  Cluster cpu = c;
  cpu.cpu = true;  // a CPU's transports have no trees
  EXPECT_NEAR(collective_time(cpu, {8, 4}, CommOp::all_reduce, DType::f32, 5000).total(),
              (20 + 10 * 1 + 4 * 2 + 35) * kMicro, 1e-9);
  // 1024 ranks, one on each node: 20 levels, instead of 2046 steps.
  EXPECT_NEAR(time(CommOp::all_reduce, 1024, 1, 5000).fixed, (20 + 20 * 2) * kMicro, 1e-9);
  // Few elements are sent directly to all ranks.
  EXPECT_NEAR(time(CommOp::all_reduce, 4, 4, 1000).total(), 12 * kMicro + 12e-6, 1e-9);
  EXPECT_EQ(time(CommOp::all_reduce, 1, 1, 1000).total(), 0);
  // A message goes to a neighbour, however many ranks are along the axis. Between nodes, each of the four devices of a
  // node has a quarter of its link.
  EXPECT_NEAR(time(CommOp::send, 2, 2, 1'000'000).total(), 11 * kMicro + 4e-3, 1e-9);
  EXPECT_NEAR(time(CommOp::send, 4, 4, 1'000'000).total(), 11 * kMicro + 4e-3, 1e-9);
  EXPECT_NEAR(time(CommOp::send, 2, 1, 1'000'000).total(), 22 * kMicro + 16e-3, 1e-9);
  EXPECT_NEAR(time(CommOp::send, 8, 1, 1'000'000).total(), 22 * kMicro + 16e-3, 1e-9);
  EXPECT_NEAR(time(CommOp::send, 2, 1, 10).fixed, 22 * kMicro, 1e-9);
  EXPECT_EQ(time(CommOp::send, 2, 1, 0).total(), 0);
  // A shift is one step. To another node, each message has the share of one device, whatever the other devices do.
  EXPECT_NEAR(time(CommOp::shift, 4, 4, 1'000'000).total(), 11 * kMicro + 4e-3, 1e-9);
  EXPECT_NEAR(time(CommOp::shift, 8, 4, 1'000'000).total(), 22 * kMicro + 16e-3, 1e-9);
  EXPECT_NEAR(time(CommOp::shift, 8, 1, 1'000'000).total(), 22 * kMicro + 16e-3, 1e-9);
  EXPECT_EQ(time(CommOp::shift, 1, 1, 1'000'000).total(), 0);
}

TEST(CollectiveTime, ComesFromATableWhereThereIsOne) {
  Cluster c = toy();
  c.collectives = {{CommOp::all_reduce, 4, 4, 1000, 1e-4}, {CommOp::all_reduce, 4, 4, 9000, 9e-4}};
  const auto time = [&](int64_t payload) {
    return collective_time(c, {4, 4}, CommOp::all_reduce, DType::f32, payload).total();
  };
  EXPECT_NEAR(time(250), 1e-4, 1e-12);
  EXPECT_NEAR(time(1250), 5e-4, 1e-12);
  EXPECT_NEAR(time(2250), 9e-4, 1e-12);
  EXPECT_NEAR(time(4500), 18e-4, 1e-12) << "beyond the last point";
  EXPECT_NEAR(time(25), 1e-4, 1e-12) << "never faster than the smallest";
}

TEST(GroupShapes, CountTheRanksOfANode) {
  const Cluster c = toy();
  const mesh::MeshShape mesh({{"data", 2}, {"x", 2}, {"y", 2}});
  const auto per_node = [&](std::string_view axis) { return group_shape(c, mesh, mesh.set(axis)).per_node; };
  EXPECT_EQ(per_node("data"), 1);
  EXPECT_EQ(per_node("x"), 2);
  EXPECT_EQ(per_node("y"), 2);
  EXPECT_EQ(group_shape(c, mesh, mesh.all()).per_node, 4);
  EXPECT_TRUE(group_shape(c, mesh, mesh.all()).spans_nodes());
}

TEST(ProductTimes, GoThroughMeasuredPointsAndStayBetweenThem) {
  Cluster c = toy();
  const auto rate = [&](int64_t m, int64_t k, int64_t n) {
    const ProductShape shape{.m = m, .k = k, .n = n};
    return 2.0 * static_cast<double>(m * k * n) / c.product_seconds(DType::f32, shape, 0);
  };
  c.half_m = 100;
  c.efficiency = 0.5;
  EXPECT_NEAR(rate(100, 64, 64), 0.25e12, 1) << "half of half of the peak";
  c.products = {{DType::f32, ProductForm::forward, 128, 128, 128, 1e11},
                {DType::f32, ProductForm::forward, 1024, 1024, 1024, 4e11},
                {DType::f32, ProductForm::dx, 128, 128, 128, 7e11}};
  EXPECT_NEAR(rate(128, 128, 128), 1e11, 1);
  EXPECT_NEAR(rate(1024, 1024, 1024), 4e11, 1);
  for (const int64_t m : {64, 300, 512, 4096}) {
    EXPECT_GE(rate(m, 256, 256), 1e11 * 0.999999);
    EXPECT_LE(rate(m, 256, 256), 4e11 * 1.000001);
  }
  c.memory_rate = 1e9;
  EXPECT_NEAR(c.product_seconds(DType::f32, {.m = 1, .k = 8, .n = 8}, 1e6), 1e-3, 1e-9) << "bound by memory";
}

// Times relative to those of all four units at their full rate.
TEST(ProductTimes, AreWholeRoundsOfTiles) {
  Cluster c = toy();
  c.units = 4;
  c.efficiency = 0.5;
  const auto rounds = [&](int64_t m, int64_t k, int64_t n) {
    const double ideal = 2.0 * static_cast<double>(m * k * n) / 0.5e12;
    return c.product_seconds(DType::f32, {.m = m, .k = k, .n = n}, 0) / ideal;
  };
  EXPECT_NEAR(rounds(512, 256, 256), 1, 1e-9) << "four tiles of 256 x 128";
  EXPECT_NEAR(rounds(256, 256, 512), 1, 1e-9) << "four tiles of 128 x 256 or 256 x 128";
  EXPECT_NEAR(rounds(1024, 256, 1024), 1, 1e-9);
  // One row more: six tiles of 256 x 128 in two rounds, or ten of 128 x 128 in three rounds at 0.9 of the rate, or
  // twenty of 128 x 64 in five at 0.8, or 36 of 64 x 64 in nine at 0.65.
  EXPECT_NEAR(rounds(513, 256, 256), 512.0 / 513 * std::min({2.0, 1.5 / 0.9, 1.25 / 0.8, 1.125 / 0.65}), 1e-9);
  EXPECT_NEAR(rounds(256, 256, 128), 1 / 0.8, 1e-9) << "one tile would leave three units idle; four of 128 x 64";
  EXPECT_NEAR(rounds(256, 512, 128), 1 / 0.9, 1e-9) << "two tiles of 128 x 128, with k in two parts";
  c.memory_rate = 1e9;
  EXPECT_NEAR(rounds(256, 512, 128), 1 / 0.8, 1e-9) << "sums of parts cost more than smaller tiles";
  c.half_k = 128;
  EXPECT_NEAR(rounds(512, 256, 256), 1.5, 1e-9);
  c.products = {{DType::f32, ProductForm::forward, 512, 256, 256, 1e11}};
  EXPECT_NEAR(rounds(512, 256, 256), 5, 1e-9) << "measured rates come first";
}

TEST(ProductTimes, AreThoseOfStepsByForm) {
  Cluster c = toy();
  c.products = {{DType::f32, ProductForm::forward, 128, 128, 128, 1e11},
                {DType::f32, ProductForm::dw, 128, 128, 128, 1e11}};
  c.in_step[static_cast<size_t>(ProductForm::dw)] = 0.25;
  const double flops = 2.0 * 128 * 128 * 128;
  EXPECT_NEAR(c.product_seconds(DType::f32, {.m = 128, .k = 128, .n = 128}, 0), flops / 1e11, 1e-12);
  EXPECT_NEAR(c.product_seconds(DType::f32, {.m = 128, .k = 128, .n = 128, .trans_a = true}, 0), flops / 0.25e11,
              1e-12);
}

TEST(AttentionTimes, DependOnLengthHeadSizeAndPass) {
  Cluster c = toy();
  const auto rate = [&](int64_t length, int64_t head_dim, bool backward) {
    const AttentionExtents extents{.length = length, .head_dim = head_dim, .backward = backward};
    return 1e9 /
           c.seconds_of(DType::f32, {.kind = OpKind::attention, .cost = {1e9, 0}, .product = {}, .attention = extents});
  };
  c.attention = 0.5;
  EXPECT_NEAR(rate(128, 64, false), 0.5e12, 1) << "a share of the peak where nothing was measured";
  c.attentions = {{DType::f32, false, 128, 16, 1e11},
                  {DType::f32, false, 128, 64, 2e11},
                  {DType::f32, false, 1024, 64, 4e11},
                  {DType::f32, true, 128, 64, 3e11}};
  EXPECT_NEAR(rate(128, 16, false), 1e11, 1);
  EXPECT_NEAR(rate(1024, 64, false), 4e11, 1);
  EXPECT_NEAR(rate(512, 32, true), 3e11, 1);
  EXPECT_GT(rate(128, 32, false), 1e11);
  EXPECT_LT(rate(128, 32, false), 2e11);
  EXPECT_NEAR(rate(65536, 64, false), rate(1024, 64, false), 1e4) << "as the longest that was measured";
  c.attention_in_step = 0.5;
  EXPECT_NEAR(rate(1024, 64, false), 2e11, 1);
}

TEST(OperatorTimes, AreByKindWhereTheKindWasMeasured) {
  Cluster c = toy();
  c.memory_rate = 1e10;
  c.memory_share = 0.5;
  c.operator_seconds = 1e-6;
  c.operators[OpKind::norm] = 2e10;
  const auto seconds = [&](OpKind kind) {
    return c.seconds_of(DType::f32, {.kind = kind, .cost = {0, 1e6}, .product = {}, .attention = {}});
  };
  EXPECT_NEAR(seconds(OpKind::norm), 5e-5 + 1e-6, 1e-12);
  EXPECT_NEAR(seconds(OpKind::rope), 2e-4 + 1e-6, 1e-12);
}

/// Programs on four ranks of one node, axis x; an all-gather of n MB takes n · 0.75 ms and 13 us.
class Play : public testing::Test {
 protected:
  Play() {
    step_.mesh = mesh::MeshShape({{"data", 1}, {"x", 4}});
    step_.parts.resize(1);
  }
  void compute(double seconds, OpKind kind = OpKind::attention) {
    recorder_.add_operator({.kind = kind, .cost = {seconds * 1e12, 0}, .product = {}, .attention = {}});
  }
  int64_t gather(double megabytes, comm::Purpose purpose = comm::Purpose::weights) {
    return recorder_.add_collective({step_.mesh.set("x"), CommOp::all_gather, DType::f32},
                                    static_cast<uint8_t>(purpose), static_cast<int64_t>(megabytes * 250'000), 0, false);
  }
  void wait(int64_t collective) { recorder_.add_wait(collective); }
  StepTime played() {
    step_.parts.back().program = recorder_.program;
    return price(step_, cluster_, DType::f32);
  }
  ProgramRecorder recorder_;
  StepProgram step_;
  Cluster cluster_ = toy();
};

TEST_F(Play, OverlapsCommunicationWithCompute) {
  const int64_t gathered = gather(4);
  compute(2e-3);
  wait(gathered);
  compute(1e-3);
  const StepTime time = played();
  EXPECT_NEAR(time.attention, 3e-3, 1e-12);
  EXPECT_NEAR(time.comm.at("x").busy, 3.013e-3, 1e-12);
  EXPECT_NEAR(time.comm.at("x").exposed, 1.013e-3, 1e-12);
  EXPECT_NEAR(time.total(), 4.013e-3, 1e-12);
}

TEST_F(Play, RunsAChannelInOrderAndSharesALink) {
  // Two collectives on one channel run one after the other.
  const int64_t first = gather(4), second = gather(4);
  wait(second);
  wait(first);
  EXPECT_NEAR(played().total(), 6.026e-3, 1e-12);
  // With two purposes they share the link, and their latencies overlap.
  recorder_ = {};
  const int64_t one = gather(4, comm::Purpose::weights), other = gather(4, comm::Purpose::grads);
  wait(one);
  wait(other);
  EXPECT_NEAR(played().total(), 6.013e-3, 1e-12);
  cluster_.lanes = 1;
  EXPECT_NEAR(played().total(), 6.026e-3, 1e-12);
}

TEST_F(Play, SlowsComputeNextToCommunication) {
  cluster_.intra.slowdown = 0.5;
  const int64_t gathered = gather(4);
  compute(1e-3);  // takes 2 ms while the gather runs
  wait(gathered);
  StepTime time = played();
  EXPECT_NEAR(time.slowed, 1e-3, 1e-12);
  EXPECT_NEAR(time.comm.at("x").exposed, 1.013e-3, 1e-12);
  EXPECT_NEAR(time.total(), 3.013e-3, 1e-12);
  cluster_.intra.slowdown = 1;  // nothing overlaps
  time = played();
  EXPECT_NEAR(time.total(), 4.013e-3, 1e-12);
  EXPECT_NEAR(time.comm.at("x").exposed, 0, 1e-12);
}

TEST_F(Play, SlowsCommunicationNextToCompute) {
  cluster_.intra.progress = 0.5;
  const int64_t gathered = gather(4);
  compute(2e-3);  // overlaps with 1 ms of the gather
  wait(gathered);
  const StepTime time = played();
  EXPECT_NEAR(time.attention, 2e-3, 1e-12);
  EXPECT_NEAR(time.slowed, 0, 1e-12);
  EXPECT_NEAR(time.comm.at("x").exposed, 2.013e-3, 1e-12);
  EXPECT_NEAR(time.total(), 4.013e-3, 1e-12);
}

TEST_F(Play, ExchangesScalarsNextToAnyQueue) {
  cluster_.lanes = 1;
  const int64_t gathered = gather(4);
  const int64_t scalar = recorder_.add_collective({step_.mesh.set("x"), CommOp::all_reduce, DType::f64},
                                                  static_cast<uint8_t>(comm::Purpose::control), 1, 0, false);
  wait(scalar);
  wait(gathered);
  const StepTime time = played();
  EXPECT_LT(time.comm.at("control").exposed, 0.1e-3);
  EXPECT_NEAR(time.total(), 3.013e-3, 0.02e-3);
}

TEST_F(Play, SendsOnLinksNextToAnyQueue) {
  const auto send = [&](int link) {
    const comm::Group group{.link = link};
    return recorder_.add_collective({step_.mesh.set("x"), CommOp::send, DType::f32},
                                    static_cast<uint8_t>(group.queue()), 1'000'000, 0, false);
  };
  for (const int lanes : {1, 3}) {
    cluster_.lanes = lanes;
    recorder_ = {};
    const int64_t received = send(1), gathered = gather(4), sent = send(2);
    wait(gathered);
    wait(received);
    wait(sent);
    EXPECT_NEAR(played().total(), 11.013e-3, 0.01e-3) << "three share the link: 4 + 4 + 3 ms";
    recorder_ = {};
    const int64_t first = send(1), second = send(1);
    wait(first);
    wait(second);
    EXPECT_NEAR(played().total(), 2 * 4.011e-3, 1e-12) << "messages of one link are in order";
  }
}

TEST_F(Play, AddsTheClosedFormToCompute) {
  for (const double slowdown : {0.0, 0.3, 0.9})
    for (const double progress : {0.2, 1.0})
      for (const double seconds : {1e-4, 3e-3, 0.1}) {
        cluster_.intra.slowdown = slowdown;
        cluster_.intra.progress = progress;
        recorder_ = {};
        const int64_t gathered = gather(4);
        compute(seconds);
        wait(gathered);
        EXPECT_NEAR(played().total(), seconds + added_by_overlap(cluster_.intra, 3.013e-3, seconds), 1e-9)
            << slowdown << " " << progress << " " << seconds;
      }
  cluster_.intra.slowdown = 1;
  EXPECT_NEAR(added_by_overlap(cluster_.intra, 3e-3, 1e-3), 3e-3, 1e-12) << "nothing is hidden";
}

TEST_F(Play, ComputesAsLongAsTheSlowestRank) {
  cluster_.skew = 1.5;
  const int64_t gathered = gather(4);
  compute(1e-3);
  wait(gathered);
  const StepTime time = played();
  EXPECT_NEAR(time.attention, 1.5e-3, 1e-12);
  EXPECT_NEAR(time.comm.at("x").busy, 3.013e-3, 1e-12);
  EXPECT_NEAR(time.total(), 3.013e-3, 1e-12) << "more of the gather is hidden";
}

TEST_F(Play, AddsUpMicroSteps) {
  compute(1e-3);
  step_.parts.insert(step_.parts.begin(), {recorder_.program, 4});
  compute(1e-3, OpKind::grad_norm);  // no FLOPs are counted for it: its time is that of its bytes
  EXPECT_NEAR(played().total(), 5e-3, 1e-12);
  const StepTime line = extrapolate(played(), played(), 7);
  EXPECT_NEAR(line.total(), 5e-3, 1e-12);
}

}  // namespace
}  // namespace trainer::plan
