#include "bench/step_rates.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/clock.h"
#include "bench/over_ranks.h"
#include "bench/random_steps.h"
#include "config/load.h"
#include "train/trainer.h"

namespace trainer::bench {
namespace {

/// Two widths, and the operators of both families.
constexpr const char* kModels[] = {R"(
[model]
arch = "gpt2"
n_layer = 2
n_head = 8
d_model = 512
seq_len = 256
[data]
vocab_size = 2048
[train]
steps = 1
micro_batch = 2
global_batch = 4
)",
                                   R"(
[model]
arch = "llama"
n_layer = 2
n_head = 4
d_model = 256
seq_len = 256
[data]
vocab_size = 2048
[train]
steps = 1
micro_batch = 2
global_batch = 4
)"};

/// Tally sums up seconds and bytes by kind, and beside the seconds of products, by form, and of attention those that
/// the tables say.
class Tally final : public Recorder {
 public:
  Tally(const plan::Cluster& cluster, DType compute) : cluster_(cluster), compute_(compute) {}
  void add_operator(const OpCall& call) override {
    const auto kind = static_cast<size_t>(call.kind);
    sums[kind] += call.seconds;
    sums[kOpKinds + kind] += call.cost.bytes;
    if (call.kind != OpKind::gemm && call.kind != OpKind::attention) return;
    const size_t table = call.kind == OpKind::gemm ? static_cast<size_t>(plan::form_of(call.product)) : kAttention;
    sums[kMeasured + table] += call.seconds;
    sums[kMeasured + kTables + table] += cluster_.seconds_of(compute_, call);
  }
  int64_t add_collective(const CommKey&, uint8_t, int64_t, int64_t) override { return 0; }
  void add_wait(int64_t) override {}

  /// Bytes a second of a kind; 0 where nothing was measured.
  double rate(OpKind kind) const {
    const auto i = static_cast<size_t>(kind);
    return sums[i] > 0 ? sums[kOpKinds + i] / sums[i] : 0;
  }
  /// Seconds by a table over those of the steps; 1 where nothing was measured.
  double share(size_t table) const {
    const double measured = sums[kMeasured + table];
    return measured > 0 ? sums[kMeasured + kTables + table] / measured : 1;
  }

  static constexpr size_t kAttention = 3, kTables = 4;  // three forms of products, and attention
  static constexpr size_t kMeasured = 2 * kOpKinds;
  std::array<double, kMeasured + 2 * kTables> sums{};

 private:
  const plan::Cluster& cluster_;
  DType compute_;
};

Tally tally_of(const char* model, const plan::Cluster& cluster, comm::World& world, device::Device& device,
               DType compute) {
  constexpr double kWindow = 0.5, kLeastSteps = 4;
  const config::Config config = config::load_text(model, "", {}, {.files = false});
  const std::unique_ptr<comm::World> alone = comm::solo_world();
  train::Trainer trainer(device, *alone, config, config.data.vocab_size, compute, true);
  trainer.plan();
  trainer.store().initialize(1);
  const train::BatchSource random = random_batches(config);
  const auto step = [&](int64_t number) { trainer.step(work_of(config, number), random); };
  const double start = now_seconds();
  step(1);
  const double window = std::max(kWindow, kLeastSteps * largest_over_ranks(world, now_seconds() - start));
  Tally tally(cluster, compute);
  trainer.meter().recorder = &tally;
  const double begin = now_seconds();
  for (int64_t number = 2; now_seconds() - begin < window; ++number) step(number);
  trainer.meter().recorder = nullptr;
  world.control().sum(tally.sums);
  return tally;
}

}  // namespace

void measure_in_steps(plan::Cluster& cluster, comm::World& world, device::Device& device, DType compute) {
  Tally all(cluster, compute);
  std::array<double, Tally::kTables> shares = {1, 1, 1, 1};
  for (const char* const model : kModels) {
    const Tally tally = tally_of(model, cluster, world, device, compute);
    for (size_t i = 0; i < all.sums.size(); ++i) all.sums[i] += tally.sums[i];
    for (size_t i = 0; i < shares.size(); ++i) shares[i] *= std::pow(tally.share(i), 1.0 / std::size(kModels));
  }
  std::copy_n(shares.begin(), cluster.in_step.size(), cluster.in_step.begin());
  cluster.attention_in_step = shares[Tally::kAttention];
  for (int i = 0; i < kOpKinds; ++i) {
    const auto kind = static_cast<OpKind>(i);
    if (kind != OpKind::gemm && kind != OpKind::attention && all.rate(kind) > 0)
      cluster.operators[kind] = all.rate(kind);
  }
}

}  // namespace trainer::bench
