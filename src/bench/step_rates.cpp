#include "bench/step_rates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/over_ranks.h"
#include "bench/random_steps.h"

namespace trainer::bench {
namespace {

/// A model of each family, in two widths.
const std::vector<std::string> kFamilies[] = {{"model.arch=gpt2", "model.d_model=512", "model.n_head=8"},
                                              {"model.arch=llama", "model.d_model=256", "model.n_head=4"}};

/// Sums the times and bytes of operators over steps.
class Tally final : public Recorder {
 public:
  Tally(const plan::Cluster& cluster, DType compute) : cluster_(cluster), compute_(compute) {}
  void add_operator(const OpCall& call) override {
    const auto kind = static_cast<size_t>(call.kind);
    const double seconds =
        std::max(call.seconds - cluster_.operator_seconds, 0.0);  // the fixed cost is priced separately
    seconds_[kind] += seconds;
    bytes_[kind] += call.cost.bytes;
    const bool product = call.kind == OpKind::gemm;
    if (!product && call.kind != OpKind::attention) return;
    const double rate =
        product ? cluster_.measured_rate(compute_, call.product) : cluster_.measured_rate(compute_, call.attention);
    if (rate == 0) return;
    const size_t table = product ? static_cast<size_t>(plan::form_of(call.product)) : kAttention;
    in_steps_[table] += seconds;
    by_table_[table] += call.cost.flops / rate;
  }
  int64_t add_collective(const CommKey&, uint8_t, int64_t, int64_t, bool) override { return 0; }
  void add_wait(int64_t) override {}

  void sum_over_ranks(comm::World& world) {
    for (const std::span<double> sums : {std::span<double>(seconds_), {bytes_}, {in_steps_}, {by_table_}})
      world.control().sum(sums);
  }
  void add(const Tally& other) {
    for (size_t i = 0; i < kOpKinds; ++i) {
      seconds_[i] += other.seconds_[i];
      bytes_[i] += other.bytes_[i];
    }
  }
  /// Returns the bytes per second of a kind of operator; 0 if nothing was measured.
  double rate(OpKind kind) const {
    const auto i = static_cast<size_t>(kind);
    return seconds_[i] > 0 ? bytes_[i] / seconds_[i] : 0;
  }
  /// Returns the share of a table's rates that the steps reached; 1 if nothing was measured.
  double share(size_t table) const { return in_steps_[table] > 0 ? by_table_[table] / in_steps_[table] : 1; }

  static constexpr size_t kAttention = 3, kTables = 4;  // three forms of GEMMs, and attention

 private:
  const plan::Cluster& cluster_;
  DType compute_;
  std::array<double, kOpKinds> seconds_{}, bytes_{};
  std::array<double, kTables> in_steps_{}, by_table_{};
};

Tally tally_of(const std::vector<std::string>& family, const plan::Cluster& cluster, comm::World& world,
               device::Device& device, DType compute) {
  constexpr double kWindow = 0.5, kLeastSteps = 4;
  SmallModel model(device, compute, family);
  const double start = now_seconds();
  model.step();
  const double window = std::max(kWindow, kLeastSteps * largest_over_ranks(world, now_seconds() - start));
  Tally tally(cluster, compute);
  model.meter().recorder = &tally;
  const double begin = now_seconds();
  while (now_seconds() - begin < window) model.step();
  model.meter().recorder = nullptr;
  tally.sum_over_ranks(world);
  return tally;
}

}  // namespace

void measure_in_steps(plan::Cluster& cluster, comm::World& world, device::Device& device, DType compute) {
  Tally all(cluster, compute);
  std::array<double, Tally::kTables> shares = {1, 1, 1, 1};
  for (const std::vector<std::string>& family : kFamilies) {
    const Tally tally = tally_of(family, cluster, world, device, compute);
    all.add(tally);
    for (size_t i = 0; i < shares.size(); ++i) shares[i] *= std::pow(tally.share(i), 1.0 / std::size(kFamilies));
  }
  std::copy_n(shares.begin(), cluster.in_step.size(), cluster.in_step.begin());
  cluster.attention_in_step = shares[Tally::kAttention];
  for (int i = 0; i < kOpKinds; ++i) {
    const auto kind = static_cast<OpKind>(i);
    if (!is_product(kind) && kind != OpKind::attention && all.rate(kind) > 0) cluster.operators[kind] = all.rate(kind);
  }
}

}  // namespace trainer::bench
