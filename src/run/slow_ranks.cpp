#include "run/slow_ranks.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/median.h"
#include "comm/agreement.h"
#include "config/faults.h"
#include "ops/gemm.h"
#include "tensor/arena.h"
#include "tensor/buffer.h"

namespace trainer::run {

/// A GEMM whose time is compared, with its memory.
struct SlowRanks::Probe {
  static constexpr int64_t kSize = 2048;
  static constexpr int kRepeats = 5, kCalls = 10;
  device::Device& device;
  Buffer x = square(), w = square(), y = square();  // zeros
  Arena arena{device};
  Meter meter = {};

  explicit Probe(device::Device& of) : device(of) {
    const std::unique_ptr<device::Device> dry = device::make_dry(device);
    arena.record("probe", [&] {
      Exec plan{*dry, arena, meter};
      run(plan);
    });
    arena.seal();
  }
  Buffer square() { return {device, "bench", {kSize, kSize}, DType::bf16}; }
  void run(Exec& ex) const { ops::run(ex, ops::Gemm{.a = x, .b = w, .c = y}); }
  double ms() {
    Exec ex{device, arena, meter};
    std::vector<double> times;
    for (int repeat = -1; repeat < kRepeats; ++repeat) {  // the first is not counted
      device.synchronize();
      const double start = now_seconds();
      for (int call = 0; call < kCalls; ++call) {
        arena.begin("probe");
        run(ex);
        arena.end();
      }
      device.synchronize();
      if (repeat >= 0) times.push_back((now_seconds() - start) * 1e3 / kCalls);
    }
    return median(times);
  }
};

SlowRanks::SlowRanks(comm::World& world, const config::Config& config, device::Device& device)
    : world_(world), stages_(config.parallel.stages) {
  if (device.kind() == device::DeviceKind::cuda && world.size() > 1 && config.log.ranks_every > 0) try {
      probe_ = std::make_unique<Probe>(device);
    } catch (const Error& error) {
      log::warning("log.ranks_every: the GPU of rank {} is not compared: {}", world.rank(), error.what());
    }
  for (const std::string& text : config.debug.inject)
    if (const auto fault = config::planted_fault(text))
      if (fault->kind == config::Fault::Kind::slow && fault->rank == world.rank()) injected_s_ += fault->seconds;
}

SlowRanks::~SlowRanks() = default;

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

double SlowRanks::probe_ms() noexcept try { return probe_ ? probe_->ms() : 0; } catch (const std::exception&) {
  return 0;
}

std::optional<report::RanksReport> SlowRanks::compare(int64_t step) {
  if (world_.size() == 1 || own_.empty()) return std::nullopt;
  const Sample own{median(own_), median(data_), median(wait_), probe_ms()};
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
  const auto medians = [&](double Sample::*value) { return report::stage_medians(by_rank(value), stages_); };
  const std::vector<double> typical_own = medians(&Sample::own_ms), typical_data = medians(&Sample::data_ms),
                            typical_probe = medians(&Sample::probe_ms);
  const auto ratio = [](double value, double typical) { return value > 0 && typical > 0 ? value / typical : 1; };
  std::vector<double> own_ms = by_rank(&Sample::own_ms);
  std::array<std::vector<double>, kCauses> ratios;
  for (size_t rank = 0; rank < samples.size(); ++rank) {
    const Sample& sample = samples[rank];
    const double more_data = sample.data_ms - typical_data[rank], gemms = ratio(sample.probe_ms, typical_probe[rank]);
    ratios[reading].push_back(ratio(typical_own[rank] + more_data, typical_own[rank]));
    ratios[computing].push_back(ratio(sample.own_ms - std::max(0.0, more_data), typical_own[rank]));
    ratios[multiplying].push_back(gemms);
    own_ms[rank] *= gemms;  // NCCL's waits are in all of them: estimated from the speed of GEMMs
  }
  report::RanksReport report = report::ranks_report(step, std::move(own_ms));
  report.stages = stages_;
  report.host = hosts[static_cast<size_t>(report.slowest)];
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
          format("rank {} (host {}) needed {:.2f} x the median of {} in {} of the last {} windows ({}); every "
                 "step waits for it: about {:.0f} % of the time",
                 slow.rank, host, slow.ratio, stages_ > 1 ? "its stage's ranks" : "all ranks", slow.windows,
                 windows_[cause].known(), kNames[cause], 100 * (1 - 1 / slow.ratio)));
    }
  return texts;
}

}  // namespace trainer::run
