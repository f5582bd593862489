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

/// Tally sums up seconds and bytes by kind, and the seconds of products by form beside those of the table.
class Tally final : public Recorder {
 public:
  Tally(const plan::Cluster& cluster, DType compute) : cluster_(cluster), compute_(compute) {}
  void add_operator(const OpCall& call) override {
    const size_t kind = static_cast<size_t>(call.kind);
    sums[kind] += call.seconds;
    sums[kOpKinds + kind] += call.cost.bytes;
    if (call.kind != OpKind::gemm) return;
    const size_t form = static_cast<size_t>(plan::form_of(call.product));
    sums[kProducts + form] += call.seconds;
    sums[kProducts + kForms + form] += cluster_.product_seconds(compute_, call.product, call.cost.bytes);
  }
  int64_t add_collective(const CommKey&, uint8_t, int64_t, int64_t) override { return 0; }
  void add_wait(int64_t) override {}

  double seconds(size_t kind) const { return sums[kind]; }
  double bytes(size_t kind) const { return sums[kOpKinds + kind]; }
  /// Seconds by the table over those of the steps; 1 where nothing was measured.
  double share(size_t form) const {
    const double measured = sums[kProducts + form];
    return measured > 0 ? sums[kProducts + kForms + form] / measured : 1;
  }

  static constexpr size_t kForms = 3, kProducts = 2 * kOpKinds;
  std::array<double, kProducts + 2 * kForms> sums{};

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
  std::array<double, 2 * kOpKinds> sums{};
  std::array<double, Tally::kForms> shares = {1, 1, 1};
  for (const char* const model : kModels) {
    const Tally tally = tally_of(model, cluster, world, device, compute);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += tally.sums[i];
    for (size_t form = 0; form < shares.size(); ++form)
      shares[form] *= std::pow(tally.share(form), 1.0 / std::size(kModels));
  }
  cluster.in_step = shares;
  for (size_t i = 0; i < kOpKinds; ++i) {
    const auto kind = static_cast<OpKind>(i);
    if (kind == OpKind::gemm || kind == OpKind::attention || sums[i] <= 0) continue;
    cluster.operators[kind] = sums[kOpKinds + i] / sums[i];
  }
}

}  // namespace trainer::bench
