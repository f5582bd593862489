#include "data/mixture.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>
#include <set>

#include "base/error.h"

namespace trainer::data {

SlotsByName slots_of(const WeightsByName& weights) {
  double total = 0;  // this order of operations is bitwise reproducible on every machine
  for (const auto& [name, weight] : weights)
    if (weight > 0) total += weight;
  struct Share {
    std::string name;
    double exact;
    int64_t slots;
  };
  std::vector<Share> shares;
  int64_t sum = 0;
  for (const auto& [name, weight] : weights) {
    if (!(weight > 0)) continue;
    const double exact = weight / total * static_cast<double>(kMixtureSlots);
    shares.push_back({name, exact, std::max<int64_t>(1, static_cast<int64_t>(std::floor(exact)))});
    sum += shares.back().slots;
  }
  TRAINER_CHECK(!shares.empty(), "a mixture requires a positive weight");
  std::vector<Share*> by_remainder;
  for (Share& share : shares) by_remainder.push_back(&share);
  std::ranges::stable_sort(by_remainder, {},
                           [](const Share* share) { return static_cast<double>(share->slots) - share->exact; });
  for (size_t i = 0; i < by_remainder.size() && sum < kMixtureSlots; ++i, ++sum) ++by_remainder[i]->slots;
  for (; sum > kMixtureSlots; --sum)  // slots added for small sources are taken from the largest source
    --std::ranges::max_element(shares, {}, [](const Share& share) {
        return std::pair(share.slots, share.name);
      })->slots;
  SlotsByName slots;
  for (const Share& share : shares) slots[share.name] = share.slots;
  return slots;
}

MixturePattern::MixturePattern(std::vector<int64_t> slots) : count_(std::move(slots)) {
  int64_t divisor = 0, period = 0;
  for (const int64_t count : count_) divisor = std::gcd(divisor, count);
  TRAINER_CHECK(divisor > 0 && count_.size() <= 65'536, "{} sources, greatest common divisor {}", count_.size(),
                divisor);
  for (int64_t& count : count_) period += count /= divisor;
  source_.resize(static_cast<size_t>(period));
  rank_.resize(source_.size());

  using Job = std::pair<int64_t, size_t>;  // the slot, and the source
  using Jobs = std::priority_queue<Job, std::vector<Job>, std::greater<>>;
  Jobs waiting, ready;  // next sample of each source, by its first permitted slot; by the slot after its last
  std::vector<int64_t> taken(count_.size(), 0);
  for (size_t source = 0; source < count_.size(); ++source)
    if (count_[source] > 0) waiting.emplace(0, source);
  for (int64_t slot = 0; slot < period; ++slot) {
    while (!waiting.empty() && waiting.top().first <= slot) {
      const size_t source = waiting.top().second;
      waiting.pop();
      const int64_t m = count_[source];
      ready.emplace(((taken[source] + 1) * period + m - 1) / m, source);
    }
    const size_t source = ready.top().second;
    ready.pop();
    source_[static_cast<size_t>(slot)] = static_cast<uint16_t>(source);
    rank_[static_cast<size_t>(slot)] = static_cast<uint32_t>(taken[source]++);
    if (taken[source] < count_[source]) waiting.emplace(taken[source] * period / count_[source], source);
  }
}

int64_t MixturePattern::index(int64_t sample) const {
  const int64_t whole = sample / period();
  const auto slot = static_cast<size_t>(sample % period());
  return whole * count_[source_[slot]] + rank_[slot];
}

std::vector<int64_t> MixturePattern::before(int64_t samples) const {
  std::vector<int64_t> counts(count_.size());
  std::vector<bool> found(count_.size());
  for (size_t source = 0; source < counts.size(); ++source) counts[source] = samples / period() * count_[source];
  // The count of a source follows from its last slot before this one.
  size_t missing = static_cast<size_t>(std::ranges::count_if(count_, [](int64_t count) { return count > 0; }));
  for (auto slot = static_cast<size_t>(samples % period()); slot-- > 0 && missing > 0;) {
    const size_t source = source_[slot];
    if (found[source]) continue;
    found[source] = true;
    --missing;
    counts[source] += rank_[slot] + int64_t{1};
  }
  return counts;
}

Mixture::Mixture(std::vector<MixturePhase> past, int64_t from, const std::vector<WeightChange>& changes) {
  TRAINER_CHECK(!changes.empty() && changes.front().first_sample == 0, "the first weights must apply from sample 0");
  std::erase_if(past, [&](const MixturePhase& phase) { return phase.first_sample >= from; });
  std::set<std::string> names;
  for (const MixturePhase& phase : past)
    for (const auto* values : {&phase.slots, &phase.start})
      for (const auto& [name, value] : *values) names.insert(name);
  for (const WeightChange& change : changes)
    for (const auto& [name, weight] : change.weights) names.insert(name);
  names_.assign(names.begin(), names.end());

  for (MixturePhase& phase : past) add(std::move(phase));
  auto next = std::ranges::find_if(changes, [&](const WeightChange& change) { return change.first_sample > from; });
  const SlotsByName slots = slots_of(std::prev(next)->weights);
  if (phases_.empty() || std::prev(next)->first_sample == from || phases_.back().slots != slots)
    add({from, slots, samples_before(from)});
  for (; next != changes.end(); ++next)
    add({next->first_sample, slots_of(next->weights), samples_before(next->first_sample)});
}

void Mixture::add(MixturePhase phase) {
  std::vector<int64_t> slots, start;
  const auto value = [](const SlotsByName& values, const std::string& name) {
    const auto found = values.find(name);
    return found == values.end() ? 0 : found->second;
  };
  for (const std::string& name : names_) {
    slots.push_back(value(phase.slots, name));
    start.push_back(value(phase.start, name));
  }
  phases_.push_back(std::move(phase));
  patterns_.emplace_back(std::move(slots));
  start_.push_back(std::move(start));
}

size_t Mixture::phase_of(int64_t sample) const {
  const auto next = std::ranges::upper_bound(phases_, sample, {}, &MixturePhase::first_sample);
  return static_cast<size_t>(std::max<int64_t>(next - phases_.begin(), 1) - 1);
}

Mixture::Place Mixture::at(int64_t sample) const {
  const size_t phase = phase_of(sample);
  const int64_t n = sample - phases_[phase].first_sample;
  TRAINER_CHECK(n >= 0, "sample {} is before the mixture, which begins at {}", sample, phases_[phase].first_sample);
  const size_t source = patterns_[phase].source(n);
  return {source, start_[phase][source] + patterns_[phase].index(n)};
}

SlotsByName Mixture::samples_before(int64_t sample) const {
  if (phases_.empty()) return {};
  const size_t phase = phase_of(sample);
  const std::vector<int64_t> counts =
      patterns_[phase].before(std::max<int64_t>(0, sample - phases_[phase].first_sample));
  SlotsByName samples;
  for (size_t i = 0; i < names_.size(); ++i) samples[names_[i]] = start_[phase][i] + counts[i];
  return samples;
}

}  // namespace trainer::data
