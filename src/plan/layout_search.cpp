#include "plan/layout_search.h"

#include <algorithm>

#include "config/layout_rules.h"
#include "config/layouts.h"

namespace trainer::plan {
namespace {

using config::Config;
using config::kTagMembers;
using config::TagMember;

constexpr const TagMember &kStreamTags = kTagMembers[0], &kAttentionTags = kTagMembers[1],
                          &kHiddenTags = kTagMembers[2], &kQkvTags = kTagMembers[3], &kOutTags = kTagMembers[4],
                          &kUpTags = kTagMembers[5], &kDownTags = kTagMembers[6];
/// Members whose tensors are exchanged.
constexpr std::pair<TagMember, TagMember> kPairs[] = {
    {kStreamTags, kQkvTags}, {kQkvTags, kAttentionTags}, {kAttentionTags, kOutTags}, {kOutTags, kStreamTags},
    {kStreamTags, kUpTags},  {kUpTags, kHiddenTags},     {kHiddenTags, kDownTags},   {kDownTags, kStreamTags}};

}  // namespace

double LayoutSearch::estimate(const Config& config) {
  const TagLayout layout = config::tag_layout(config);
  LayerCosts costs = costs_of(config, layout.axes);
  return estimate(costs, layout);
}

double LayoutSearch::estimate(LayerCosts& costs, const TagLayout& layout) const {
  constexpr double kLast = 1e6;
  return costs.step_seconds(layout) * (costs.least_bytes(layout) > memory_limit_ ? kLast : 1);
}

void LayoutSearch::find_tags(const Config& config, size_t most_axes, std::vector<PlannedRun>& runs) {
  const int64_t ranks = config::ranks_of_replica(config);
  for (const std::vector<int64_t>& extents : config::axis_lists(ranks, cluster_.devices_per_node)) {
    if (extents.size() > most_axes) continue;
    Config trial = config;
    trial.parallel.axes = extents;
    LayerCosts costs = costs_of(trial, config::tag_axes(trial.parallel));
    const std::optional<TagLayout> found = costs.best(memory_limit_);
    if (!found) continue;
    config::set_tag_layout(trial, *found);
    if (!config::layout_fits(trial)) continue;
    runs.push_back(planned(trial));
    runs.back().estimate = estimate(costs, *found);
  }
}

std::vector<PlannedRun> LayoutSearch::neighbours(const Config& config) {
  const TagLayout layout = config::tag_layout(config);
  LayerCosts costs = costs_of(config, layout.axes);
  std::vector<PlannedRun> runs;
  const auto add = [&](TagLayout other) {
    if (layout.last == layout.layer.stream) other.last = other.layer.stream;  // the head follows the last layer
    Config trial = config;
    config::set_tag_layout(trial, other);
    if (!config::layout_fits(trial)) return;
    runs.push_back(planned(trial));
    runs.back().estimate = estimate(costs, other);
  };
  for (size_t axis = 0; axis < layout.axes.size(); ++axis) {
    for (const auto& [first, second] : kPairs)
      for (const char a : std::string_view(first.letters))
        for (const char b : std::string_view(second.letters)) {
          TagLayout other = layout;
          (other.layer.*first.member)[axis] = a;
          (other.layer.*second.member)[axis] = b;
          add(std::move(other));
        }
    for (const char letter : std::string_view(config::kTableLetters)) {
      TagLayout other = layout;
      other.table[axis] = letter;
      add(std::move(other));
    }
  }
  std::ranges::stable_sort(runs, {}, &PlannedRun::estimate);
  return runs;
}

}  // namespace trainer::plan
