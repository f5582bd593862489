#include "offload/clock.h"

#include <algorithm>
#include <limits>

namespace trainer::offload {
namespace {

enum Resource : uint8_t { link_in, link_out, host_threads, device_threads, host_memory };
constexpr size_t kResources = 5;
using Amounts = std::array<double, kResources>;

struct Work {
  Amounts amounts{};    // amount of each resource, in the resource's unit
  double seconds = 0;   // time if nothing else runs, without the start-up time
  double progress = 0;  // from 0 to 1
  double starts = 0;    // remaining seconds of the start-up time
};

/// A running operation.
struct Active {
  Work* work;
  double left;  // remaining seconds of work in its stream, if nothing else runs
};

Amounts amounts_of(const Operation& op, double n, const Rates& rates, const Sizes& sizes) {
  const auto bytes = static_cast<double>(bytes_of(op.kind, 1, sizes)) * n;
  Amounts a{};
  switch (op.kind) {
    case OperationKind::flush:
    case OperationKind::drain:
      a[link_out] = a[host_memory] = bytes;
      break;
    case OperationKind::load:
    case OperationKind::refresh:
      a[link_in] = a[host_memory] = bytes;
      break;
    case OperationKind::update_device:
      a[device_threads] = n;
      break;
    case OperationKind::update_host:
      a[host_threads] = n;
      a[host_memory] = n * (host_traffic(rates, sizes) - static_cast<double>(sizes.compute));
      break;
  }
  return a;
}

/// Computes the speed of each running operation, as a fraction of its speed if nothing else ran. Operations that
/// together demand more of a resource than there is share it in proportion to the remaining work in their streams: then
/// all end together, and the resource is busy until the end.
void share_out(const std::vector<Active>& active, const Amounts& capacity, std::vector<double>& speeds) {
  speeds.assign(active.size(), 0);
  std::vector<char> fixed(active.size());
  Amounts left = capacity;
  for (size_t open = active.size(); open > 0;) {
    Amounts demand{};
    double growth = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < active.size(); ++i) {
      if (fixed[i]) continue;
      growth = std::min(growth, (1 - speeds[i]) / active[i].left);
      for (size_t r = 0; r < kResources; ++r)
        demand[r] += active[i].left * active[i].work->amounts[r] / active[i].work->seconds;
    }
    for (size_t r = 0; r < kResources; ++r)
      if (demand[r] > 0) growth = std::min(growth, left[r] / demand[r]);
    for (size_t i = 0; i < active.size(); ++i)
      if (!fixed[i]) speeds[i] += growth * active[i].left;
    for (size_t r = 0; r < kResources; ++r) left[r] -= growth * demand[r];
    for (size_t i = 0; i < active.size(); ++i) {
      if (fixed[i]) continue;
      bool full = speeds[i] >= 1 - 1e-12;
      for (size_t r = 0; r < kResources; ++r) full |= active[i].work->amounts[r] > 0 && left[r] <= 1e-9 * capacity[r];
      fixed[i] = full;
      open -= full;
    }
  }
}

}  // namespace

double play(const Schedule& ops, std::span<const Subgroup> subgroups, const Rates& rates, const Sizes& sizes,
            bool hidden) {
  const Amounts capacity{rates.to_device, rates.to_host, rates.host, rates.device, rates.memory};
  double weights = 0;  // time at which the last weights are updated
  std::vector<char> done(ops.size());
  std::vector<char> later(ops.size());  // true if the operation waits for the norm
  std::vector<Work> work(ops.size());
  std::array<std::vector<size_t>, kStreams> streams;
  std::array<char, kStreams> stream_later{};
  for (size_t i = 0; i < ops.size(); ++i) {
    const auto stream = static_cast<size_t>(ops[i].stream());
    later[i] = is_update(ops[i].kind) || stream_later[stream] ||
               std::ranges::any_of(ops[i].after, [&](int a) { return later[static_cast<size_t>(a)] != 0; });
    stream_later[stream] = later[i];
    if (hidden && !later[i]) {
      done[i] = 1;
      continue;
    }
    const auto n = static_cast<double>(subgroups[static_cast<size_t>(ops[i].subgroup)].part.count);
    work[i].amounts = amounts_of(ops[i], n, rates, sizes);
    for (size_t r = 0; r < kResources; ++r)
      work[i].seconds = std::max(work[i].seconds, work[i].amounts[r] / capacity[r]);
    work[i].starts = rates.start;
    streams[stream].push_back(i);
  }
  std::array<size_t, kStreams> next{};
  std::array<char, kStreams> running{};
  double now = 0;
  std::vector<Active> active;
  std::array<double, kStreams> left{};
  for (size_t stream = 0; stream < kStreams; ++stream)
    for (const size_t i : streams[stream]) left[stream] += work[i].seconds;
  std::vector<double> speeds;
  for (;;) {
    active.clear();
    double step = std::numeric_limits<double>::infinity();
    bool any = false;
    for (size_t stream = 0; stream < kStreams; ++stream) {
      if (next[stream] == streams[stream].size()) continue;
      const size_t i = streams[stream][next[stream]];
      if (!running[stream]) {
        if (std::ranges::any_of(ops[i].after, [&](int a) { return done[static_cast<size_t>(a)] == 0; })) continue;
        running[stream] = 1;
      }
      any = true;
      if (work[i].starts > 0) {
        step = std::min(step, work[i].starts);
      } else {
        active.push_back({&work[i], std::max(1e-12, left[stream] - work[i].progress * work[i].seconds)});
      }
    }
    if (!any) break;
    share_out(active, capacity, speeds);
    for (size_t k = 0; k < active.size(); ++k)
      step = std::min(step, (1 - active[k].work->progress) * active[k].work->seconds / speeds[k]);
    now += step;
    for (size_t k = 0; k < active.size(); ++k) active[k].work->progress += step * speeds[k] / active[k].work->seconds;
    for (size_t stream = 0; stream < kStreams; ++stream) {
      if (!running[stream]) continue;
      const size_t i = streams[stream][next[stream]];
      if (work[i].starts > 0) {
        work[i].starts = work[i].starts <= step * (1 + 1e-12) ? 0 : work[i].starts - step;
        continue;
      }
      if (work[i].progress < 1 - 1e-9) continue;
      done[i] = 1;
      left[stream] -= work[i].seconds;
      running[stream] = 0;
      ++next[stream];
      if (makes_weights(ops[i].kind)) weights = now;
    }
  }
  return weights;
}

}  // namespace trainer::offload
