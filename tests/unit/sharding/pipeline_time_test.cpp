// The time of lists, and the split of layers over chunks.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/shape.h"
#include "rigs/draws.h"
#include "sharding/pipeline.h"

namespace trainer::sharding {
namespace {

/// The times of a pass through a whole stage. Without passes for weight gradients, the backward pass has both.
struct Times {
  double forward, backward, weights, hop = 0;
};

/// Returns when each stage ends. `pace`: of a chunk, by which its times are multiplied.
template <typename Pace>
std::vector<double> ends(const Stages& p, int64_t micro_batches, const Times& times, const Pace& pace) {
  const bool split = p.schedule == PipelineSchedule::zb_h1;
  const auto seconds = [&](const Action& action) {
    double all = 0;
    if (action.has(kForward)) all += times.forward;
    if (action.has(kBackward)) all += times.backward + (split ? 0 : times.weights);
    if (action.has(kWeights)) all += times.weights;
    return all * pace(action.chunk) / static_cast<double>(p.chunks);
  };
  return simulate(lists_of(p, micro_batches), p, seconds, times.hop);
}
double step(const Stages& p, int64_t micro_batches, const Times& times) {
  return std::ranges::max(ends(p, micro_batches, times, [](int32_t) { return 1.0; }));
}

TEST(Simulation, OfForwardPassesNeverDeadlocks) {
  for (const int64_t count : {1, 2, 3, 4, 8})
    for (const int64_t chunks : {1, 2, 3})
      for (int64_t batches = 1; batches <= 4 * count; ++batches) {
        const Stages p{.count = count, .chunks = chunks};
        const double time = std::ranges::max(simulate(forward_lists(p, batches), p, [](const Action&) { return 1.0; }));
        if (batches % count == 0 || chunks == 1)
          EXPECT_EQ(time, static_cast<double>(batches * chunks + count - 1)) << count << " x " << chunks;
        else
          EXPECT_LE(time, static_cast<double>(round_up(batches, count) * chunks + count - 1));
      }
}

constexpr PipelineSchedule k1f1b = PipelineSchedule::one_forward_one_backward, kZbH1 = PipelineSchedule::zb_h1;

/// Qi et al. (Zero Bubble, 2023): table 9's times in milliseconds, table 5's bubbles of 1f1b and zb-h1, and table 4's
/// samples per second and GPU of 1f1b and zb-1p, with a micro-batch of `sequences`.
struct Published {
  int64_t stages, micro_batches;
  Times times;
  double bubble, zb_bubble;
  double sequences, rate, zb_rate;
};
constexpr Published kPublished[] = {{8, 24, {18.522, 18.086, 9.337, .601}, .2431, .1585, 6, 11.8, 12.9},
                                    {8, 32, {18.513, 18.086, 9.331, .626}, .1985, .1242, 6, 12.5, 13.4},
                                    {8, 64, {18.546, 18.097, 9.321, .762}, .1240, .0674, 6, 13.6, 14.2},
                                    {8, 24, {29.718, 29.444, 19.927, .527}, .2347, .1323, 3, 3.50, 3.88},
                                    {8, 32, {29.802, 29.428, 19.530, .577}, .1898, .1045, 3, 3.70, 4.00},
                                    {8, 64, {29.935, 29.621, 19.388, .535}, .1091, .0554, 3, 4.03, 4.20},
                                    {16, 48, {11.347, 11.248, 8.132, .377}, .2552, .1397, 1, 1.40, 1.61},
                                    {16, 64, {11.307, 11.254, 8.101, .379}, .2082, .1088, 1, 1.49, 1.67},
                                    {16, 128, {11.325, 11.308, 8.109, .378}, .1251, .0576, 1, 1.64, 1.76},
                                    {32, 96, {10.419, 10.207, 7.715, .408}, .2646, .1421, 1, .76, .87},
                                    {32, 128, {10.408, 10.204, 7.703, .408}, .2168, .1106, 1, .80, .90},
                                    {32, 256, {10.402, 10.248, 7.698, .460}, .1352, .0594, 1, .88, .96}};

// Those rates include updates and data, which these times leave out, so they are a few percent lower.
TEST(Simulation, ComesCloseToPublishedRates) {
  for (const Published& row : kPublished) {
    const auto predicted = [&](PipelineSchedule schedule) {
      const double seconds = 1e-3 * step({row.stages, 1, schedule, {}}, row.micro_batches, row.times);
      return row.sequences * static_cast<double>(row.micro_batches) / (seconds * static_cast<double>(row.stages));
    };
    for (const double ratio : {predicted(k1f1b) / row.rate, predicted(kZbH1) / row.zb_rate}) {
      EXPECT_GE(ratio, 1.02) << row.stages << " stages, " << row.micro_batches << " micro-batches";
      EXPECT_LE(ratio, 1.10) << row.stages << " stages, " << row.micro_batches << " micro-batches";
    }
    EXPECT_NEAR(predicted(kZbH1) / predicted(k1f1b) / (row.zb_rate / row.rate), 1, .03) << row.micro_batches;
  }
}

TEST(Simulation, AgreesWithPublishedBubbles) {
  for (const Published& row : kPublished) {
    const double work =
        static_cast<double>(row.micro_batches) * (row.times.forward + row.times.backward + row.times.weights);
    const auto bubble = [&](PipelineSchedule schedule) {
      return 1 - work / step({row.stages, 1, schedule, {}}, row.micro_batches, row.times);
    };
    EXPECT_NEAR(bubble(k1f1b), row.bubble, 1e-4) << row.stages << " stages, " << row.micro_batches << " micro-batches";
    EXPECT_NEAR(bubble(kZbH1), row.zb_bubble, 1e-4) << row.stages << " stages, " << row.micro_batches;
  }
}

TEST(Simulation, AgreesWithClosedFormsForEqualStages) {
  constexpr Times times{1, 1.25, .75};
  for (const int64_t stages : {1, 2, 4, 8})
    for (const int64_t chunks : {1, 2, 4})
      for (const int64_t groups : {1, 2, 4}) {
        if (stages == 1 && chunks > 1) continue;
        const auto m = static_cast<double>(groups * stages), more = static_cast<double>(stages - 1);
        EXPECT_NEAR(step({stages, chunks, k1f1b, {}}, groups * stages, times),
                    (m + more / static_cast<double>(chunks)) * 3, 1e-9);
        if (chunks == 1) {
          EXPECT_NEAR(step({stages, 1, kZbH1, {}}, groups * stages, times), m * 3 + more * 1.5, 1e-9);
        }
      }
}

TEST(Simulation, FollowsUnevenStages) {
  struct Row {
    Stages stages;
    int64_t micro_batches;
    std::vector<double> ends;
  };
  for (const Row& row : {Row{{3, 1, k1f1b, {}}, 5, {29.75, 27.625, 25}},
                         {{3, 1, kZbH1, {}}, 5, {25.4375, 25.1875, 25}},
                         {{4, 1, k1f1b, {}}, 8, {45.25, 43.125, 40.5, 37.375}},
                         {{4, 1, kZbH1, {}}, 8, {39.9375, 39.6875, 39.5, 36.625}},
                         {{2, 2, k1f1b, {}}, 4, {16.375, 15.25}},
                         {{4, 3, k1f1b, {}}, 8, {37.75, 36 + 23. / 24, 36, 34.875}}}) {
    const std::vector<double> found =
        ends(row.stages, row.micro_batches, {1, 1.25, .75, .125}, [](int32_t chunk) { return 1 + chunk % 3 / 4.0; });
    for (size_t s = 0; s < found.size(); ++s) EXPECT_NEAR(found[s], row.ends[s], 1e-12) << text_of(row.stages) << s;
  }
}

TEST(SplitOfLayers, BalancesChunksAndCountsTheHead) {
  using Split = std::vector<int64_t>;
  const auto split = [](size_t layers, double head, int64_t chunks) {
    return split_layers(std::vector<double>(layers, 1e9), head * 1e9, chunks);
  };
  constexpr double kGpt2 = 4.908, kLlama8B = 2.087, kGpt3 = .342;  // heads of published models, in layers
  EXPECT_EQ(split(12, kGpt2, 1), (Split{12}));
  EXPECT_EQ(split(12, kGpt2, 2), (Split{8, 4}));
  EXPECT_EQ(split(12, kGpt2, 3), (Split{5, 6, 1}));
  EXPECT_EQ(split(12, kGpt2, 4), (Split{4, 4, 4, 0}));
  EXPECT_EQ(split(32, kLlama8B, 2), (Split{17, 15}));
  EXPECT_EQ(split(32, kLlama8B, 4), (Split{8, 9, 9, 6}));
  EXPECT_EQ(split(32, kLlama8B, 8), (Split{4, 4, 4, 4, 4, 5, 5, 2}));
  EXPECT_EQ(split(96, kGpt3, 8), Split(8, 12));
  EXPECT_EQ(split(96, kGpt3, 16), Split(16, 6));
  EXPECT_EQ(split(32, 1.2, 4), (Split{8, 8, 9, 7}));
  EXPECT_EQ(split(30, .5, 4), (Split{7, 8, 8, 7}));
  EXPECT_EQ(split(2, .1, 2), (Split{1, 1}));
  EXPECT_EQ(split(5, 9, 3), (Split{2, 3, 0}));
}

TEST(SplitOfLayers, IsTheBestOfAll) {
  for (uint64_t seed = 0; seed < 2'000; ++seed) {
    tests::Draws draw(seed, "split");
    const int64_t chunks = 1 + draw.below(5), layers = std::max<int64_t>(1 + draw.below(9), chunks - 2);
    std::vector<double> costs;
    for (int64_t l = 0; l < layers; ++l) costs.push_back(draw.one_of<double>({1, 1.5, 2}));
    const double head = draw.one_of<double>({0, .5, 3});
    using Value = std::tuple<double, double, std::vector<int64_t>>;  // largest cost, sum of squares, split
    std::vector<Value> all;
    std::vector<int64_t> split;
    const std::function<void(int64_t, double, double)> extend = [&](int64_t first, double most, double squares) {
      const auto chunk = std::ssize(split);
      if (chunk == chunks) {
        if (first == layers) all.emplace_back(most, squares, split);
        return;
      }
      double cost = chunk == chunks - 1 ? head : 0;
      for (int64_t end = first; end <= layers; ++end) {
        if (end > first) cost += costs[static_cast<size_t>(end - 1)];
        if (end == first && 0 < chunk && chunk < chunks - 1) continue;
        split.push_back(end - first);
        extend(end, std::max(most, cost), squares + cost * cost);
        split.pop_back();
      }
    };
    extend(0, 0, 0);
    EXPECT_EQ(split_layers(costs, head, chunks), std::get<2>(std::ranges::min(all))) << "seed " << seed;
  }
}

}  // namespace
}  // namespace trainer::sharding
