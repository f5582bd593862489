#include "report/ranks.h"

#include <algorithm>
#include <cmath>

#include "base/median.h"

namespace trainer::report {

RanksReport ranks_report(int64_t step, std::vector<double> own_ms) {
  RanksReport report{.step = step, .own_ms = {}};
  const auto slowest = std::ranges::max_element(own_ms);
  report.slowest = slowest - own_ms.begin();
  report.max_ms = *slowest;
  report.median_ms = median(own_ms);
  std::vector<double> sorted = own_ms;
  std::ranges::sort(sorted);
  const auto nearest = [&](double share) {  // the value of the nearest rank; share in (0, 1]
    return sorted[static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size()))) - 1];
  };
  report.p90_ms = nearest(0.9);
  if (own_ms.size() > kMostRanksListed) {
    own_ms.clear();
    for (size_t i = 1; i <= kMostRanksListed; ++i)
      own_ms.push_back(nearest(static_cast<double>(i) / static_cast<double>(kMostRanksListed)));
  }
  report.own_ms = std::move(own_ms);
  return report;
}

std::vector<double> stage_medians(const std::vector<double>& values, int64_t stages) {
  std::vector<std::vector<double>> measured(static_cast<size_t>(stages));
  const auto stage_of = [&](size_t rank) { return rank * measured.size() / values.size(); };
  for (size_t rank = 0; rank < values.size(); ++rank)
    if (values[rank] > 0) measured[stage_of(rank)].push_back(values[rank]);
  std::vector<double> medians;
  for (size_t rank = 0; rank < values.size(); ++rank) {
    const std::vector<double>& stage = measured[stage_of(rank)];
    medians.push_back(stage.empty() ? 0 : median(stage));
  }
  return medians;
}

void SlowWindows::add(std::vector<double> ratios) {
  if (!windows_.empty() && windows_.back().size() != ratios.size()) windows_.clear();  // other ranks, after a resume
  windows_.push_back(std::move(ratios));
  if (windows_.size() > kWindows) windows_.pop_front();
}

std::vector<SlowWindows::Rank> SlowWindows::often_slow() const {
  std::vector<Rank> ranks;
  for (size_t r = 0; !windows_.empty() && r < windows_.back().size(); ++r) {
    Rank rank{.rank = r};
    for (const std::vector<double>& window : windows_) {
      if (!(window[r] > kSlow)) continue;
      ++rank.windows;
      rank.ratio += window[r];
    }
    rank.ratio /= static_cast<double>(std::max<size_t>(1, rank.windows));
    if (rank.windows >= kSlowWindows) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace trainer::report
