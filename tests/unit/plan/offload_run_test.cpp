// The planner's prediction of the optimizer's update on a cluster, compared with a run on a device emulated at the same
// rates (debug.emulate_device): with its engine's prediction, and with its operations in order on the virtual clock.
#include "plan/offload_time.h"
#include "plan/planner.h"
#include "rigs/cluster_files.h"
#include "rigs/offload.h"

namespace trainer::tests {
namespace {

/// A device as debug.emulate_device names it, and its rates: GB/s, and 1e9 parameters/s of updates.
struct Emulated {
  const char* text;
  double to_device, to_host, host, device, memory;
};
constexpr Emulated kA100{"a100", 24, 24, 1.2, 60, 33.75}, kH100{"h100", 55, 55, 3, 100, 87.5};

plan::Cluster cluster_of(const Emulated& e) {
  constexpr double kTraffic = 30;  // bytes per update on the device: gradient 4; p, m, v read and written; bf16 weights
  plan::Cluster c = cluster_file("a100-80gb");
  c.memory_rate = kTraffic * e.device * 1e9;
  c.memory_share = 1;
  c.operator_seconds = 0;
  c.host = {.memory_bytes = 1e12,
            .memory_rate = e.memory * 1e9,
            .to_device = e.to_device * 1e9,
            .to_host = e.to_host * 1e9,
            .updates = e.host * 1e9};
  return c;
}

/// Runs some steps and compares them with their plan. Returns nanoseconds of an update per parameter, on the
/// virtual clock.
double expect_predicted(const Emulated& e, const char* share) {
  SCOPED_TRACE(format("{}, share {}", e.text, share));
  config::Config c = tiny_config();
  c.parallel.data = 1;
  c.offload = {.optimizer = config::OffloadOptimizer::interleaved, .gpu_fraction = share, .subgroup = 64, .slots = 3};
  const plan::Cluster cluster = cluster_of(e);
  const plan::PlannedRun planned = plan::price_config(c, kTinyVocab, cluster);
  const setup::OffloadWork& work = *planned.plan.offload;
  const double ms = 1e3 * plan::offload_seconds(work, cluster, /*backward=*/1);  // long enough for all gradients
  EXPECT_GE(1e3 * planned.time.offload, ms);

  c.debug.emulate_device = e.text;
  Tiny run(c, DType::bf16, 1);
  for (int64_t n = 1; n <= 4; ++n) run.step(n);
  const offload::Report report = run.trainer.offload()->report();
  EXPECT_GT(run.trainer.offload()->subgroups().size(), 100u);
  EXPECT_EQ(run.trainer.offload()->subgroups().size(), work.subgroups.size());
  EXPECT_EQ(report.device_share, plan::device_share(work, plan::offload_rates(cluster, work.sizes)));
  EXPECT_NEAR(report.predicted_ms, ms, 1e-9 * ms);
  EXPECT_NEAR(report.emulated_ms / ms, 1, 0.03);
  return 1e6 * report.emulated_ms / static_cast<double>(report.share.total());
}

TEST(OffloadRun, UpdatesTakeWhatThePlanPredicts) {
  for (const Emulated& e : {kA100, kH100})
    for (const char* share : {"0", "1/3", "1/2", "1", "auto"}) expect_predicted(e, share);
}

// The time of an update if only one rate limits it, in nanoseconds per parameter.
TEST(OffloadRun, UpdatesTakeAsLongAsTheirSlowestPart) {
  struct Bound {
    Emulated device;
    const char* share;
    double ns;
  };
  for (const Bound& b : {
           Bound{{"to_device=500,to_host=500,host=0.3,device=100,memory=500", 500, 500, 0.3, 100, 500}, "0", 1 / 0.3},
           {{"to_device=500,to_host=500,host=10,device=100,memory=20", 500, 500, 10, 100, 20}, "0", 32.0 / 20},
           {{"to_device=500,to_host=500,host=10,device=1,memory=500", 500, 500, 10, 1, 500}, "1", 1},
           {{"to_device=5,to_host=9,host=10,device=100,memory=500", 5, 9, 10, 100, 500}, "1", 12.0 / 5},
           {{"to_device=9,to_host=5,host=10,device=100,memory=500", 9, 5, 10, 100, 500}, "1", 12.0 / 5},
       })
    EXPECT_NEAR(expect_predicted(b.device, b.share) / b.ns, 1, 0.03) << b.device.text;
}

// Half the rates double the time of the plan and of the run.
TEST(OffloadRun, ADeviceOfHalfTheRatesTakesTwiceAsLong) {
  constexpr Emulated kHalf{"to_device=12,to_host=12,host=0.6,device=30,memory=16.875", 12, 12, 0.6, 30, 16.875};
  for (const char* share : {"0", "1/2", "1"}) {
    const double whole = expect_predicted(kA100, share), half = expect_predicted(kHalf, share);
    EXPECT_NEAR(half, 2 * whole, 1e-6 * half) << share;
  }
}

}  // namespace
}  // namespace trainer::tests
