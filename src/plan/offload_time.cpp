#include "plan/offload_time.h"

#include <algorithm>

#include "base/error.h"
#include "config/layouts.h"
#include "optim/make.h"

namespace trainer::plan {
namespace {

using config::OffloadOptimizer;

/// Returns the memory traffic of an update in bytes per parameter, in the memory that stores the state: the gradient,
/// a read and a write of master weights and states, and the compute weights.
double update_traffic(const offload::Sizes& sizes) {
  return static_cast<double>(sizes.gradient + 2 * sizes.kept() + (sizes.bounces() ? sizes.compute : 0));
}

}  // namespace

offload::Rates offload_rates(const Cluster& cluster, const offload::Sizes& sizes) {
  const double device = cluster.memory_rate * cluster.memory_share / update_traffic(sizes);
  if (cluster.host.known())
    return {.to_device = cluster.host.to_device,
            .to_host = cluster.host.to_host,
            .host = cluster.host.updates,
            .device = device,
            .memory = cluster.host.memory_rate,
            .start = cluster.operator_seconds};
  if (!cluster.cpu)
    throw Error(Code::config,
                format("{}: the table [host] is missing, but offload.optimizer is not \"none\"; add it "
                       "(configs/clusters/ has examples; `trainer bench all --write-profile` measures it)",
                       cluster.path));
  const double memory = cluster.memory_rate * cluster.memory_share;
  return {.to_device = memory / 2,
          .to_host = memory / 2,
          .host = device,
          .device = device,
          .memory = memory,
          .start = cluster.operator_seconds};
}

config::Fraction device_share(const OffloadWork& work, const offload::Rates& rates) {
  if (!work.chosen) return work.placement.device_share;
  return offload::best_share(work.placement, work.subgroups, rates, work.sizes);
}

double offload_seconds(const OffloadWork& work, const Cluster& cluster, double backward) {
  const offload::Rates rates = offload_rates(cluster, work.sizes);
  offload::Placement placement = work.placement;
  placement.device_share = device_share(work, rates);
  const double update = offload::update_seconds(placement, work.subgroups, rates, work.sizes);
  const offload::Share share =
      offload::share_of(offload::residencies(placement, static_cast<int>(work.subgroups.size())), work.subgroups);
  const double flushed = static_cast<double>(share.host * work.sizes.gradient) / rates.to_host;
  return update + std::max(0.0, flushed - backward);
}

std::optional<OffloadWork> deepened(const std::optional<OffloadWork>& less, const std::optional<OffloadWork>& more,
                                    int64_t layers) {
  if (!less || !more) return std::nullopt;
  OffloadWork work = *more;
  const size_t each = more->subgroups.size() - less->subgroups.size();
  // The groups are the embedding, then the layers, then the head, so group 1 is the first layer.
  const auto layer = std::ranges::find_if(more->subgroups, [&](const auto& s) { return s.group == 1; });
  const std::vector<offload::Subgroup> repeated(
      layer, layer + std::min<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(each), more->subgroups.end() - layer));
  for (int64_t i = 0; i < layers; ++i)
    work.subgroups.insert(work.subgroups.begin() + (layer - more->subgroups.begin()), repeated.begin(), repeated.end());
  return work;
}

std::vector<OffloadOptimizer> offload_choices(const config::Config& config, const Cluster& cluster) {
  if (optim::named_rule(config)->elementwise() == nullptr || config::is_given(config, "offload.optimizer") ||
      cluster.cpu || !cluster.host.known())
    return {};
  return {OffloadOptimizer::cpu, OffloadOptimizer::interleaved};
}

int64_t residents_within(const OffloadWork& work, double bytes) {
  const double each = static_cast<double>(work.sizes.kept() * offload::largest_of(work.subgroups));
  if (each <= 0 || bytes < each) return 0;
  return std::min<int64_t>(static_cast<int64_t>(bytes / each), static_cast<int64_t>(work.subgroups.size()));
}

}  // namespace trainer::plan
