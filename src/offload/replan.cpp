#include "offload/replan.h"

#include <algorithm>
#include <cmath>

namespace trainer::offload {
namespace {

constexpr int kWindow = 5;           // updates between moves of the rates
constexpr double kNew = 2.0 / 3;     // weight of what they showed
constexpr double kNoise = 0.05;      // differences below it say nothing
constexpr double kMostChange = 4;    // of a rate at a time
constexpr double kMostDrift = 8;     // of a rate in all: where another one decides, little is known of it
constexpr int kUsual = 50;           // updates between choices
constexpr int kMisses = 5;           // wrong predictions in a row that ask for one
constexpr double kMiss = 0.15;       // of the measured time
constexpr double kLeastGain = 0.05;  // of the predicted time

}  // namespace

double Replanner::predicted(const Plan& plan) const {
  const std::vector<Place> where = places(plan, static_cast<int>(subgroups_.size()));
  return update_seconds(share_of(where, subgroups_), static_cast<int64_t>(subgroups_.size()), plan.slots, rates_,
                        sizes_, bounce_, plan.share_activations);
}

const Seconds& Replanner::expected(const Schedule& schedule) {
  const auto [found, is_new] = expected_.try_emplace(&schedule);
  if (!is_new) return found->second;
  const Timeline line = play(schedule, subgroups_, rates_, sizes_, bounce_);
  Seconds played{}, all{};  // elements
  for (size_t i = 0; i < schedule.operations.size(); ++i) {
    const Operation& op = schedule.operations[i];
    const auto elements = static_cast<double>(subgroups_[static_cast<size_t>(op.subgroup)].part.count);
    all[static_cast<size_t>(op.kind)] += elements;
    if (line.end[i] > 0) played[static_cast<size_t>(op.kind)] += elements;
  }
  for (size_t kind = 0; kind < kKinds; ++kind)
    found->second[kind] = played[kind] > 0 ? line.busy[kind] * all[kind] / played[kind] : 0;
  return found->second;
}

void Replanner::follow() {
  const auto move = [&](double Rates::*which, std::initializer_list<Kind> kinds) {
    double should = 0, was = 0;
    for (const Kind kind : kinds) {
      const auto k = static_cast<size_t>(kind);
      if (should_[k] <= 0) continue;
      should += should_[k];
      was += was_[k];
    }
    if (should <= 0 || was <= 0 || std::abs(should / was - 1) < kNoise) return;
    const double moved = rates_.*which * (1 - kNew + kNew * std::clamp(should / was, 1 / kMostChange, kMostChange));
    rates_.*which = std::clamp(moved, start_.*which / kMostDrift, start_.*which * kMostDrift);
  };
  move(&Rates::to_device, {Kind::load, Kind::refresh});
  move(&Rates::to_host, {Kind::drain});
  move(&Rates::host, {Kind::update_host});
  move(&Rates::device, {Kind::update_device});
  expected_.clear();
  should_ = was_ = {};
  moved_ = 0;
}

std::optional<config::Fraction> Replanner::observe(const Plan& plan, const Schedule& schedule,
                                                   const Measured& measured) {
  const Seconds& should = expected(schedule);
  for (size_t kind = 0; kind < kKinds; ++kind) {
    should_[kind] += should[kind];
    was_[kind] += measured.busy[kind];
  }
  if (++moved_ == kWindow) follow();
  const double now = predicted(plan);
  misses_ = std::abs(now - measured.update_s) > kMiss * measured.update_s ? misses_ + 1 : 0;
  if (++updates_ < kUsual && misses_ < kMisses) return std::nullopt;
  updates_ = misses_ = 0;
  Plan best = plan;
  best.device_share = best_share(plan, subgroups_, rates_, sizes_, bounce_);
  if (predicted(best) >= (1 - kLeastGain) * now) return std::nullopt;
  expected_.clear();
  return best.device_share;
}

}  // namespace trainer::offload
