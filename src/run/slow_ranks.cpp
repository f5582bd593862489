#include "run/slow_ranks.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include "base/median.h"
#include "comm/agreement.h"
#include "config/faults.h"
#include "ops/gemm.h"
#include "ops/op_timing.h"
#include "tensor/buffer.h"

namespace trainer::run {

SlowRanks::SlowRanks(comm::World& world, const config::Config& config, device::Device& device)
    : world_(world), device_(device) {
  for (const std::string& text : config.debug.inject)
    if (const auto fault = config::planted_fault(text))
      if (fault->kind == config::Fault::Kind::slow && fault->rank == world.rank()) injected_s_ += fault->seconds;
}

void SlowRanks::inject() const {
  if (injected_s_ > 0) std::this_thread::sleep_for(std::chrono::duration<double>(injected_s_));
}

void SlowRanks::add(double step_ms, double data_ms, const Meter& meter) {
  double wait_ms = 0;
  for (const auto& [key, count] : meter.comm()) wait_ms += count.wait_seconds * 1e3;
  own_.push_back(step_ms - wait_ms);
  data_.push_back(data_ms);
  wait_.push_back(wait_ms);
}

double SlowRanks::probe() const {
  if (device_.kind() != device::DeviceKind::cuda) return 0;
  constexpr int64_t kSize = 2048;
  Arena arena(device_, Arena::Mode::heap);
  Meter meter;
  Exec ex{device_, arena, meter};
  const auto square = [&] { return Buffer(device_, "bench", {kSize, kSize}, DType::bf16); };
  const Buffer x = square(), w = square(), y = square();  // zeros
  return ops::median_seconds(ex, ops::Gemm{.a = x, .b = w, .c = y}, 5) * 1e3;
}

std::optional<report::RanksReport> SlowRanks::compare(int64_t step) {
  if (world_.size() == 1 || own_.empty()) return std::nullopt;
  const Sample own{median(own_), median(data_), median(wait_), probe()};
  for (std::vector<double>* values : {&own_, &data_, &wait_}) values->clear();
  if (hosts_.empty()) hosts_ = world_.control().gather(comm::host_name());
  const std::vector<std::string> all =
      world_.control().gather(std::string(reinterpret_cast<const char*>(&own), sizeof own));
  std::vector<Sample> samples(all.size());
  for (size_t rank = 0; rank < all.size(); ++rank) std::memcpy(&samples[rank], all[rank].data(), sizeof own);
  return judge(step, samples, hosts_);
}

report::RanksReport SlowRanks::judge(int64_t step, const std::vector<Sample>& samples,
                                     const std::vector<std::string>& hosts) {
  hosts_ = hosts;
  const auto by_rank = [&](double Sample::*value) {
    std::vector<double> values;
    for (const Sample& sample : samples) values.push_back(sample.*value);
    return values;
  };
  const double data_ms = median(by_rank(&Sample::data_ms)), probe_ms = median(by_rank(&Sample::probe_ms));
  std::vector<double> own_ms = by_rank(&Sample::own_ms);
  if (probe_ms > 0)  // NCCL's waits are in all of them: estimated from the speed of GEMMs
    for (size_t rank = 0; rank < samples.size(); ++rank) own_ms[rank] *= samples[rank].probe_ms / probe_ms;
  report::RanksReport report = report::ranks_report(step, std::move(own_ms));
  report.host = hosts[static_cast<size_t>(report.slowest)];
  const double median_ms = median(by_rank(&Sample::own_ms));
  std::array<std::vector<double>, kCauses> ratios;
  for (const Sample& sample : samples) {
    const double more_data = sample.data_ms - data_ms;
    ratios[reading].push_back(1 + more_data / median_ms);
    ratios[computing].push_back((sample.own_ms - std::max(0.0, more_data)) / median_ms);
    ratios[multiplying].push_back(probe_ms > 0 ? sample.probe_ms / probe_ms : 1);
  }
  for (size_t cause = 0; cause < kCauses; ++cause) windows_[cause].add(ratios[cause]);
  return report;
}

std::vector<std::string> SlowRanks::warnings() {
  static constexpr const char* kNames[] = {"reading data", "compute", "GEMMs on its GPU"};
  std::vector<std::string> texts;
  for (size_t cause = 0; cause < kCauses; ++cause)
    for (const report::SlowWindows::Rank& slow : windows_[cause].often_slow()) {
      const std::string& host = hosts_[slow.rank];
      if (!warned_.insert({host, static_cast<Cause>(cause)}).second) continue;
      texts.push_back(
          format("rank {} (host {}) needed {:.2f} x the median of all ranks in {} of the last {} windows ({}); every "
                 "step waits for it: about {:.0f} % of the time",
                 slow.rank, host, slow.ratio, slow.windows, windows_[cause].known(), kNames[cause],
                 100 * (1 - 1 / slow.ratio)));
    }
  return texts;
}

}  // namespace trainer::run
