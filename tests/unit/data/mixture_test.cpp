// The mixture of weighted sources compared with its definition, an independent program's numbers, and plain counting.
#include "data/mixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>

#include "data/dataset.h"

namespace trainer::data {
namespace {

TEST(Slots, AreWholeSharesByLargestRemainder) {
  EXPECT_EQ(slots_of({{"web", 0.7}, {"code", 0.2}, {"math", 0.1}}),
            (SlotsByName{{"code", 20'000}, {"math", 10'000}, {"web", 70'000}}));
  EXPECT_EQ(slots_of({{"a", 1}, {"b", 1}, {"c", 1}}), (SlotsByName{{"a", 33'334}, {"b", 33'333}, {"c", 33'333}}));
  EXPECT_EQ(slots_of({{"a", 1}, {"b", 1e-9}}), (SlotsByName{{"a", 99'999}, {"b", 1}}));
  EXPECT_EQ(slots_of({{"a", 3}, {"b", 0}, {"c", 1}}), (SlotsByName{{"a", 75'000}, {"c", 25'000}}));
  EXPECT_EQ(slots_of({{"only", 0.25}}), (SlotsByName{{"only", 100'000}}));
}

TEST(Slots, ArePercentExactlyAndAlwaysAllOfThem) {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 200; ++trial) {
    WeightsByName percent, any;
    int left = 100;
    for (int i = 0; left > 0; ++i) {
      const int part = std::min<int>(left, 1 + static_cast<int>(random() % 40));
      percent["s" + std::to_string(i)] = part / 100.0;
      left -= part;
      any["s" + std::to_string(i)] = std::pow(static_cast<double>(random() % 1000 + 1), 4);
    }
    for (const auto& [name, slots] : slots_of(percent))
      EXPECT_EQ(slots, std::llround(percent[name] * 100) * 1000) << name << " in trial " << trial;
    int64_t sum = 0;
    for (const auto& [name, slots] : slots_of(any)) sum += slots;
    EXPECT_EQ(sum, kMixtureSlots);
  }
}

TEST(MixturePattern, GivesEachSourceItsShareAtEveryPrefix) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 12; ++trial) {
    WeightsByName weights;
    const int sources = 2 + static_cast<int>(random() % 9);
    for (int i = 0; i < sources; ++i)
      weights["s" + std::to_string(i)] = trial % 3 == 0 ? static_cast<double>(random() % 9 + 1)
                                                        : std::pow(static_cast<double>(random() % 1000 + 1) / 1000, 4);
    std::vector<int64_t> slots;
    for (const auto& [name, count] : slots_of(weights)) slots.push_back(count);
    const int64_t divisor = std::accumulate(slots.begin(), slots.end(), int64_t{0}, std::gcd<int64_t, int64_t>);
    const MixturePattern pattern(slots);
    ASSERT_EQ(pattern.period(), kMixtureSlots / divisor);
    std::vector<int64_t> seen(slots.size(), 0);
    for (int64_t n = 0; n < pattern.period(); ++n) {
      const size_t source = pattern.source(n);
      ASSERT_EQ(pattern.index(n), seen[source]) << "sample " << n;
      ++seen[source];
      for (size_t i = 0; i < seen.size(); ++i)  // |seen − (n + 1)·m/B| < 1, in integers
        ASSERT_LT(std::abs(seen[i] * kMixtureSlots - (n + 1) * slots[i]), kMixtureSlots) << i << " at " << n;
      if (n % 997 == 0) {
        ASSERT_EQ(pattern.before(n + 1), seen);
      }
    }
    EXPECT_EQ(pattern.index(pattern.period() * 3), pattern.index(0) + 3 * seen[pattern.source(0)]);
  }
}

/// Returns the windows of samples [begin, end) as "w49 w5 c4 …": the source's first letter and the window's number.
std::string drawn(const Mixture& mixture, const std::map<std::string, uint64_t>& windows, int64_t begin, int64_t end) {
  std::string text;
  for (int64_t n = begin; n < end; ++n) {
    const Mixture::Place place = mixture.at(n);
    const std::string& name = mixture.names()[place.source];
    const uint64_t all = windows.at(name), k = static_cast<uint64_t>(place.index);
    const FeistelPermutation permutation(all, 1234, k / all, "data.permutation/" + name);
    text += (text.empty() ? "" : " ") + name.substr(0, 1) + std::to_string(permutation(k % all));
  }
  return text;
}

const std::map<std::string, uint64_t> kWindows = {{"web", 50}, {"code", 7}, {"math", 3}};
const WeightChange kFirst{0, {{"web", 0.7}, {"code", 0.2}, {"math", 0.1}}};
const WeightChange kSecond{25, {{"math", 0.5}, {"code", 0.2}, {"web", 0.3}}};

TEST(Mixture, GivesTheNumbersOfAnIndependentProgram) {
  const Mixture mixture({}, 0, {kFirst, kSecond});
  EXPECT_EQ(drawn(mixture, kWindows, 0, 25),
            "w49 w5 c4 w8 w19 w17 c1 w28 m1 w1 w31 w2 c5 w27 w9 w38 c3 w10 m0 w20 w15 w43 c0 w23 w7");
  EXPECT_EQ(drawn(mixture, kWindows, 25, 40), "m2 w22 m0 c6 m2 w33 m1 c2 m2 w34 m1 w3 m0 c1 m1");
  EXPECT_EQ(mixture.phases().at(1).start, (SlotsByName{{"code", 5}, {"math", 2}, {"web", 18}}));
  EXPECT_EQ(mixture.samples_before(25), mixture.phases().at(1).start);
}

TEST(Mixture, EveryEpochHasEachWindowOnceAcrossChangesOfWeights) {
  const std::vector<WeightChange> changes = {
      {0, {{"a", 5}, {"b", 1}, {"c", 3}}}, {333, {{"b", 1}, {"c", 9}}}, {1201, {{"a", 1}, {"b", 2}}}};
  const Mixture mixture({}, 0, changes);
  SlotsByName seen = {{"a", 0}, {"b", 0}, {"c", 0}};
  for (int64_t n = 0; n < 4000; ++n) {
    const Mixture::Place place = mixture.at(n);
    ASSERT_EQ(mixture.samples_before(n), seen) << n;
    ASSERT_EQ(place.index, seen[mixture.names()[place.source]]++) << n;
  }
}

TEST(Mixture, AResumedRunKeepsWhatIsBefore) {
  const Mixture whole({}, 0, {kFirst, kSecond});
  for (const int64_t from : {1, 24, 25, 26, 31}) {  // unchanged weights: as if the run had not stopped
    const Mixture resumed(whole.phases(), from, {kFirst, kSecond});
    EXPECT_EQ(resumed.phases(), whole.phases()) << from;
  }
  const Mixture early({}, 0, {kFirst});
  const Mixture changed(early.phases(), 25, {{0, kSecond.weights}});
  EXPECT_EQ(changed.phases(), whole.phases());
  EXPECT_EQ(drawn(changed, kWindows, 0, 40), drawn(whole, kWindows, 0, 40));
  // A planned phase that a resumed run no longer has is dropped, and a new source begins at 0.
  const Mixture other(whole.phases(), 20, {{0, {{"web", 1}, {"new", 1}}}});
  ASSERT_EQ(other.phases().size(), 2u);
  EXPECT_EQ(other.phases()[1].first_sample, 20);
  EXPECT_EQ(other.samples_before(20), (SlotsByName{{"code", 4}, {"math", 2}, {"new", 0}, {"web", 14}}));
  EXPECT_EQ(other.samples_before(30).at("new"), 5);
  EXPECT_EQ(other.samples_before(30).at("code"), 4);
  // A run that is resumed without an earlier mixture counts from its first sample.
  const Mixture late({}, 100, {kFirst});
  EXPECT_EQ(late.phases().front().first_sample, 100);
  EXPECT_EQ(late.at(100).index, 0);
}

TEST(Mixture, LooksUpASampleInConstantTime) {
  WeightsByName weights;
  for (int i = 0; i < 1000; ++i) weights["source-" + std::to_string(i)] = i + 1;
  const Mixture mixture({}, 0, {{0, weights}});
  const auto seconds = [&](int64_t first) {
    const auto start = std::chrono::steady_clock::now();
    int64_t sum = 0;
    for (int64_t n = first; n < first + 20'000; ++n) sum += mixture.at(n).index;
    EXPECT_GT(sum, 0);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  seconds(0);
  EXPECT_LT(seconds(1'000'000'000'000), 50 * seconds(1000) + 0.01);
  const SlotsByName before = mixture.samples_before(1'000'000'000'000);  // 10⁷ full periods
  EXPECT_EQ(before.at("source-0"), 10'000'000 * slots_of(weights).at("source-0"));
}

}  // namespace
}  // namespace trainer::data
