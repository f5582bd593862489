// The estimated time of redistributions in pieces of rows, next to the GEMMs of a CPU.
#include <gtest/gtest.h>

#include "config/layouts.h"
#include "config/load.h"
#include "plan/layer_costs.h"
#include "plan/pricing.h"

namespace trainer::plan {
namespace {

using config::Config;

constexpr int64_t kLayers = 6, kWidth = 512, kRows = 2048;
constexpr double kPeak = 1e11;

Config gpt2(int64_t tensor, bool overlap) {
  return config::load_text(
      format("[model]\nn_layer = {}\nn_head = 8\nd_model = {}\nseq_len = 512\nvocab_multiple = 1024\n"
             "[data]\nvocab_size = 1024\n[train]\nglobal_batch = 4\nmicro_batch = 4\n[precision]\ncompute = \"fp32\"\n"
             "[parallel]\ntensor = {}\ndata = 1\noverlap = {{ all_reduce = {} }}\n",
             kLayers, kWidth, tensor, overlap),
      "test.toml", {}, {.files = false, .plans = true});
}

/// A CPU on which only GEMMs and bytes take time.
Cluster cpu(double gb_per_s) {
  Cluster c;
  c.cpu = true;
  c.devices_per_node = 4;
  c.memory_bytes = 1e15;
  c.memory_rate = 1e30;
  c.peaks = {{DType::f32, kPeak}};
  c.intra.gb_per_s = gb_per_s;
  return c;
}

double estimate(const Config& config, const Cluster& cluster) {
  RouteShares routes;
  const sharding::ModelSharding layout = config::sharding_of(config);
  return LayerCosts(cluster, config, 1024, DType::f32, layout, routes).step_seconds(layout);
}

TEST(PiecesTime, OverlapsWithTheGemmOfTheOtherRows) {
  for (const int64_t tensor : {2, 4}) {
    SCOPED_TRACE(tensor);
    const auto saved = [&](double gb_per_s) {
      return estimate(gpt2(tensor, false), cpu(gb_per_s)) - estimate(gpt2(tensor, true), cpu(gb_per_s));
    };
    const double parts = static_cast<double>(tensor), gemms = 2.0 * kRows * 12 * kWidth * kWidth / parts / kPeak;
    // Over a fast link each piece takes less time than the GEMM next to it. All gathers before a GEMM overlap with it,
    // two forward and two backward, and the first halves of two reduce-scatters forward. Those backward overlapped with
    // the GEMM of the weight gradient before.
    const double fast = 100, each = (parts - 1) / parts * 4 * kRows * kWidth / (fast * 1e9);
    EXPECT_NEAR(saved(fast), kLayers * 5 * each, 1e-6 * kLayers * 5 * each);
    // Over a slow link half of each GEMM overlaps, forward and of the input gradient; between more than two ranks also
    // half of the rank's own rows, where the GEMM follows a gather: qkv and up forward, out and down backward.
    const double own = tensor == 2 ? 0 : gemms / parts / 2;
    EXPECT_NEAR(saved(0.01), kLayers * (gemms + own), 1e-6 * kLayers * gemms);
  }
}

TEST(PiecesTime, OfEstimatesIsCloseToThatOfSimulatedPrograms) {
  for (const int64_t tensor : {2, 4})
    for (const double gb_per_s : {0.1, 1.0, 10.0}) {
      SCOPED_TRACE(format("{} ranks, {} GB/s", tensor, gb_per_s));
      const Config config = gpt2(tensor, true);
      PlannedRun run = planned(config);
      Pricer(cpu(gb_per_s), config, 1024, tensor).price(run);
      EXPECT_NEAR(estimate(config, cpu(gb_per_s)), run.time.total(), 0.05 * run.time.total());
    }
}

}  // namespace
}  // namespace trainer::plan
