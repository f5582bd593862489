#include "bench/profile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/clock.h"
#include "bench/attention.h"
#include "bench/collectives.h"
#include "bench/gemm.h"
#include "bench/offload.h"
#include "bench/over_ranks.h"
#include "bench/random_steps.h"
#include "bench/step_rates.h"
#include "offload/make.h"
#include "ops/elementwise.h"
#include "ops/op_timing.h"
#include "setup/peak.h"

namespace trainer::bench {
namespace {

/// A GEMM of square matrices that keeps ranks computing for as long as needed.
struct Work {
  Work(device::Device& device, DType compute)
      : a(device, "benchmark", {kExtent, kExtent}, compute),
        b(device, "benchmark", {kExtent, kExtent}, compute),
        c(device, "benchmark", {kExtent, kExtent}, compute),
        product{.a = a, .b = b, .c = c} {
    ops::fill_normal(device, a, "a");
    ops::fill_normal(device, b, "b");
  }
  void repeat(Exec& ex, int64_t times) const {
    for (int64_t i = 0; i < times; ++i) ops::run(ex, product);
  }
  static constexpr int64_t kExtent = 256;
  Buffer a, b, c;
  ops::Gemm product;
};

/// Returns the groups to measure in a world of `ranks` ranks: the members of this rank's group for each size and each
/// distance between members.
std::vector<std::vector<int>> profiled_groups(int ranks, int rank) {
  std::vector<std::vector<int>> all;
  for (int size = 2; size <= ranks; ++size) {
    if (ranks % size != 0) continue;
    for (const int stride : {1, ranks / size}) {
      const int first = stride == 1 ? rank / size * size : rank % stride;
      std::vector<int> members;
      for (int i = 0; i < size; ++i) members.push_back(first + i * stride);
      if (all.empty() || all.back() != members) all.push_back(std::move(members));
    }
  }
  return all;
}

/// Profile takes the measurements one by one and stores them in a Cluster.
class Profile {
 public:
  Profile(comm::World& world, const config::Config& config, const setup::Machine& machine,
          const ProfileOptions& options)
      : world_(world),
        config_(config),
        machine_(machine),
        options_(options),
        device_(setup::make_device(machine)),
        arena_(*device_, Arena::Mode::heap),
        ex_{*device_, arena_, meter_} {}

  plan::Cluster measure() {
    describe();
    compute();
    cluster_.host = measure_host(world_, config_, machine_, *device_);
    if (world_.size() > 1) collectives();
    return std::move(cluster_);
  }

 private:
  void describe() {
    cluster_.name = "measured here";
    cluster_.source = "trainer bench --write-profile";
    if (offload::rates_of(config_.debug)) cluster_.source += ", [host]: debug.emulate_device";
    cluster_.measured = true;
    cluster_.ranks = world_.size();
    cluster_.devices_per_node = world_.local_size();
    cluster_.device = setup::device_text(machine_);
    cluster_.cpu = !machine_.gpu.has_value();
    cluster_.memory_bytes = static_cast<double>(machine_.memory_limit);
    cluster_.lanes = world_.transport() == "nccl" ? 1 : 3;
  }

  void compute() {
    const setup::PeakTracker peak = setup::make_peak(*device_, machine_.compute, config_, world_);
    const double flops = mean_over_ranks(world_, peak.flops());
    cluster_.peaks[machine_.compute] = flops;
    memory();
    products(flops);
    attention();
    cluster_.attention = cluster_.attentions.back().flops / flops;  // an approximation for other types
    if (cluster_.cpu && options_.steps) measure_in_steps(cluster_, world_, *device_, machine_.compute);
  }

  /// Single operators on a CPU are measured by rank 0 while the other ranks wait, since the rates in steps already
  /// include how ranks slow each other down. On GPUs all ranks measure at the same time.
  bool measures_operators() const { return !cluster_.cpu || world_.first(); }
  ops::Timing timing_of_operators() const {
    if (cluster_.cpu) return {.repeats = options_.repeats};
    ops::Timing timing = on_all_ranks_;
    timing.window = 0.03;
    return timing;
  }
  /// Returns the mean over the ranks that measure.
  double mean_over_measuring(double value) {
    world_.control().sum({&value, 1});  // the other ranks contribute 0
    return cluster_.cpu ? value : value / world_.size();
  }

  /// Measures copies much larger than the caches, and tiny ones.
  void memory() {
    const auto seconds_of_copy = [&](int64_t elements) {
      const Buffer from(*device_, "benchmark", {elements}, DType::f32),
          to(*device_, "benchmark", {elements}, DType::f32);
      return 1 / mean_over_ranks(world_, 1 / ops::seconds_of(ex_, ops::Copy{from, to}, on_all_ranks_));
    };
    constexpr int64_t kLarge = 8 << 20, kSmall = 64;
    cluster_.memory_rate = 8.0 * static_cast<double>(kLarge) / seconds_of_copy(kLarge);
    cluster_.operator_seconds = seconds_of_copy(kSmall);
    cluster_.memory_share = 0.8;
  }

  /// Measures several head sizes, since the cost of a score's GEMMs grows with the head size, but the cost of its
  /// exponential does not.
  void attention() {
    std::vector<int64_t> lengths = {128, 1024};
    if (!cluster_.cpu) lengths.push_back(4096);
    for (const int64_t length : lengths)
      for (const int64_t head_dim : {16, 64, 128}) {
        const ops::AttentionShape shape{.batch = (cluster_.cpu ? 2048 : 32768) / length,  // keeps a GPU busy
                                        .q_len = length,
                                        .k_len = length,
                                        .k_capacity = 0,
                                        .heads = 4,
                                        .kv_heads = 4,
                                        .head_dim = head_dim};
        const AttentionRate rate = measures_operators()
                                       ? bench_attention(ex_, machine_.compute, shape, timing_of_operators())
                                       : AttentionRate();
        for (const auto& [backward, gflops] : {std::pair{false, rate.forward_gflops}, {true, rate.backward_gflops}})
          cluster_.attentions.push_back({machine_.compute, backward, static_cast<double>(length),
                                         static_cast<double>(head_dim), mean_over_measuring(gflops) * 1e9});
      }
  }

  void products(double peak) {
    std::vector<GemmShape> shapes;
    for (const int64_t m : {64, 256, 1024, 4096})
      for (const int64_t k : {64, 256, 1024})
        for (const int64_t n : {64, 256, 1024})
          if (2.0 * static_cast<double>(m * k * n) / peak < options_.product_seconds) shapes.push_back({m, k, n});
    for (const GemmShape& shape : shapes) {
      const GemmRate rate = measures_operators()
                                ? bench_gemm(ex_, machine_.compute, {&shape, 1}, timing_of_operators()).front()
                                : GemmRate();
      const auto add = [&](plan::ProductForm form, int64_t m, int64_t k, int64_t n, double gflops) {
        cluster_.products.push_back({machine_.compute, form, static_cast<double>(m), static_cast<double>(k),
                                     static_cast<double>(n), mean_over_measuring(gflops) * 1e9});
      };
      add(plan::ProductForm::forward, shape.m, shape.k, shape.n, rate.forward);
      add(plan::ProductForm::dx, shape.m, shape.n, shape.k, rate.dx);
      add(plan::ProductForm::dw, shape.k, shape.m, shape.n, rate.dw);
    }
  }

  void collectives() {
    std::vector<std::unique_ptr<comm::Communicator>> groups;
    uint32_t axes = 1;
    for (std::vector<int>& members : profiled_groups(world_.size(), world_.rank())) {
      const auto own = std::ranges::find(members, world_.rank());
      groups.push_back(world_.communicator(*device_,
                                           {.axes = axes,
                                            .name = format("profile {}", axes),
                                            .members = members,
                                            .index = static_cast<int>(own - members.begin())},
                                           comm::Purpose::critical));
      axes <<= 1;
    }
    world_.connect();
    const int64_t most = *std::ranges::max_element(options_.payloads) / size_of(DType::f32);
    CollectiveTimer timer(world_, *device_, most);
    cluster_.skew = skew(timer);
    std::set<std::pair<int, int>> seen;
    for (const auto& group : groups) {
      const int per_node = per_node_of(*group);
      if (!seen.insert({group->size(), per_node}).second) continue;
      measure(timer, *group, per_node);
    }
  }

  /// Returns the time of equal work on the slowest rank relative to the mean over the ranks. If ranks share cores,
  /// their times vary with the load on those cores, and in a step all ranks wait for the slowest.
  double skew(CollectiveTimer& timer) {
    constexpr double kSegment = 0.1;  // seconds, about the time between two collectives of a step
    const Work work(*device_, machine_.compute);
    const double mean = 1 / mean_over_ranks(world_, 1 / ops::seconds_of(ex_, work.product, on_all_ranks_));
    const auto times = static_cast<int64_t>(std::ceil(kSegment / mean));  // equal on all ranks
    const double slowest = timer.slowest([&] { work.repeat(timer.exec(), times); }, 3 * options_.repeats);
    return std::max(1.0, slowest / (static_cast<double>(times) * mean));
  }

  /// Returns the number of members on the first member's node. Ranks are numbered node by node.
  int per_node_of(const comm::Communicator& group) const {
    const std::vector<int>& members = group.group().members;
    return static_cast<int>(std::ranges::count_if(
        members, [&](int rank) { return rank / world_.local_size() == members.front() / world_.local_size(); }));
  }

  void measure(CollectiveTimer& timer, comm::Communicator& group, int per_node) {
    for (const CommOp op : {CommOp::all_reduce, CommOp::reduce_scatter, CommOp::all_gather, CommOp::broadcast,
                            CommOp::reduce, CommOp::all_to_all, CommOp::shift})
      for (const int64_t payload : options_.payloads) {
        const int64_t n = std::max<int64_t>(1, payload / size_of(DType::f32) / group.size()) * group.size();
        // One repetition is enough for a long operation.
        const double first = timer.seconds(group, op, n, 1);
        const double seconds = first > 0.2 ? first : timer.seconds(group, op, n, options_.repeats, 0);
        cluster_.collectives.push_back(
            {op, group.size(), per_node, static_cast<double>(n * size_of(DType::f32)), seconds});
      }
    const bool spans = per_node < group.size();
    plan::Link& link = spans ? cluster_.inter : cluster_.intra;
    if (link.gb_per_s > 0) return;
    fit(link, group.size(), per_node);
    if (options_.steps) measure_overlapped(link, timer, group, per_node);
  }

  /// Fits the constants of a link to a group's all-gathers. They predict the times of groups that were not measured.
  void fit(plan::Link& link, int ranks, int per_node) const {
    const plan::CollectivePoint *least = nullptr, *most = nullptr;
    for (const plan::CollectivePoint& point : cluster_.collectives)
      if (point.op == CommOp::all_gather && point.ranks == ranks && point.per_node == per_node) {
        if (least == nullptr) least = &point;
        most = &point;
      }
    const double rate = plan::fitted_rate(*least, *most) * 1e-9;
    // The groups of a node share its link to other nodes.
    link.gb_per_s = per_node < ranks ? rate * cluster_.devices_per_node / per_node : rate;
    link.start_us = link.hop_us = least->seconds * 1e6 / ranks;
  }

  /// Measures how much all-reduces and concurrent steps of a small model slow each other down. Unlike GEMMs on cached
  /// operands, steps compete with communication for memory bandwidth and cache.
  void measure_overlapped(plan::Link& link, CollectiveTimer& timer, comm::Communicator& group, int per_node) {
    constexpr double kLongest = 0.15, kLonger = 4;  // longest all-reduce in seconds; compute time / all-reduce time
    int64_t n = 0;
    for (const plan::CollectivePoint& point : cluster_.collectives)
      if (point.op == CommOp::all_reduce && point.ranks == group.size() && point.per_node == per_node &&
          (n == 0 || point.seconds < kLongest))
        n = static_cast<int64_t>(point.bytes) / size_of(DType::f32);
    SmallModel model(*device_, machine_.compute, {"model.d_model=512", "model.n_head=8"});
    const double sum = timer.seconds(group, CommOp::all_reduce, n, options_.repeats);
    const double step = timer.slowest([&] { model.step(); }, options_.repeats);
    // The shorter of the two is repeated until compute takes about kLonger times as long as communication. All ranks
    // use the same counts.
    const auto steps = static_cast<int>(std::clamp(std::ceil(kLonger * sum / step), 1.0, 1000.0));
    const auto sums = static_cast<int>(std::clamp(steps * step / (kLonger * sum), 1.0, 1000.0));
    const auto compute = [&] {
      for (int i = 0; i < steps; ++i) model.step();
    };
    const double single = timer.slowest(compute, options_.repeats), all_sums = sums * sum;
    std::vector<double> computed, communicated, both;
    for (int i = 0; i < options_.repeats; ++i) {
      world_.control().barrier();
      const double begin = now_seconds();
      std::vector<comm::Ticket> tickets;
      for (int each = 0; each < sums; ++each) tickets.push_back(timer.start(group, CommOp::all_reduce, n));
      compute();
      device_->synchronize();
      computed.push_back(now_seconds() - begin);
      double end = 0;
      for (comm::Ticket& ticket : tickets) end = ticket.join(timer.exec()).end;
      communicated.push_back(std::max(end - begin, 0.0));
      device_->synchronize();
      both.push_back(now_seconds() - begin);
    }
    const double overlapped = timer.slowest_median(communicated);
    if (overlapped == 0) {  // a GPU's stream does not report when an operation ended
      link.slowdown = std::clamp((timer.slowest_median(both) - single) / all_sums, 0.0, 1.0);
      return;
    }
    const Interference found = interference(single, all_sums, timer.slowest_median(computed), overlapped);
    link.slowdown = found.slowdown;
    link.progress = found.progress;
  }

  comm::World& world_;
  const config::Config& config_;
  const setup::Machine& machine_;
  const ProfileOptions& options_;
  std::unique_ptr<device::Device> device_;
  Arena arena_;
  Meter meter_;
  Exec ex_;
  plan::Cluster cluster_;
  const ops::Timing on_all_ranks_{
      .repeats = options_.repeats, .window = 0.2, .largest_on_any_rank = [this](double value) {
        return largest_over_ranks(world_, value);
      }};
};

}  // namespace

Interference interference(double compute, double communication, double computed, double communicated) {
  const double both_ran = std::min(communicated, computed);
  return {.slowdown = std::clamp((computed - compute) / both_ran, 0.0, 1.0),
          .progress = std::clamp((communication - (communicated - both_ran)) / both_ran, 0.01, 1.0)};
}

plan::Host measure_host(comm::World& world, const config::Config& config, const setup::Machine& machine,
                        device::Device& device) {
  const bool linked = device.kind() == device::DeviceKind::cuda || offload::rates_of(config.debug);
  if (mean_over_ranks(world, linked ? 1 : 0) < 1) return {};  // some rank has no link to measure
  world.control().barrier();
  const offload::Rates rates = rates_of(config, device, machine.compute, config.offload.subgroup);
  std::array<double, 5> all{static_cast<double>(machine.host_limit), rates.memory, rates.to_device, rates.to_host,
                            rates.host};
  world.control().sum(all);
  for (double& each : all) each /= world.size();
  return {.memory_bytes = all[0], .memory_rate = all[1], .to_device = all[2], .to_host = all[3], .updates = all[4]};
}

plan::Cluster measure_profile(comm::World& world, const config::Config& config, const setup::Machine& machine,
                              const ProfileOptions& options) {
  return Profile(world, config, machine, options).measure();
}

}  // namespace trainer::bench
