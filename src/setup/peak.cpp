#include "setup/peak.h"

#include <algorithm>

#include "base/error.h"
#include "base/median.h"
#include "config/config.h"
#include "setup/gpu_peak.h"
#include "setup/peak_windows.h"

namespace trainer::setup {

PeakTracker::PeakTracker(double flops, std::string origin, std::string unit)
    : flops_(flops), origin_(std::move(origin)), unit_(std::move(unit)) {}

PeakTracker::PeakTracker(std::string unit, Windows windows, Clock clock)
    : origin_("measured"),
      unit_(std::move(unit)),
      windows_(std::move(windows)),
      clock_(std::move(clock)),
      started_(clock_()) {
  rates_.reserve(2048);  // for two seconds of windows, so that no memory is allocated between steps
}

PeakReport PeakTracker::report() const {
  PeakReport report{.flops = flops_, .origin = origin_, .unit = unit_};
  report.windows = static_cast<int64_t>(rates_.size());
  if (!rates_.empty()) {
    report.median_flops = median(rates_);
    report.lowest_flops = *std::min_element(rates_.begin(), rates_.end());
  }
  report.raised_by = raised_by_;
  return report;
}

double PeakTracker::measure(int count) {
  if (!windows_) return 0;
  const size_t before = rates_.size();
  rates_.resize(before + static_cast<size_t>(count));
  const std::span<double> fresh = std::span(rates_).subspan(before);
  const double start = clock_();
  windows_(fresh);
  const double seconds = clock_() - start;
  sample_seconds_ = std::min(sample_seconds_, seconds * kBetweenSteps / count);
  for (const double rate : fresh) {
    if (rate <= flops_) continue;  // false while flops_ is unknown (NaN)
    flops_ = rate;
    raised_by_.clear();
  }
  return seconds;
}

bool PeakTracker::is_due() const {
  if (!windows_) return false;
  const double room = std::min(kMostSeconds, kShare * (clock_() - started_)) - samples_seconds_;
  return room >= sample_seconds_;
}

void PeakTracker::sample() { samples_seconds_ += measure(kBetweenSteps); }

std::string PeakTracker::raise_to_rate(double flops, std::string_view what) {
  if (!(flops > flops_)) return {};
  const std::string faster =
      format("{} ran at {:.4g} TFLOP/s, above the peak of {:.4g}", what, flops * 1e-12, flops_ * 1e-12);
  const bool first = !std::exchange(reported_, true);
  if (!is_measured()) {
    if (!first) return {};
    return faster + (origin_ == "user" ? " set by hardware.peak_tflops: that value is too low, so utilisation may "
                                         "exceed 100 %; remove the key to have the peak measured"
                                       : " from the data sheet; set hardware.peak_tflops to this device's peak");
  }
  flops_ = flops;
  raised_by_ = what;
  if (!first) return {};
  const std::string shown = rates_.empty()
                                ? " measured before"
                                : format(" measured in {} windows, which were probably disturbed", rates_.size());
  return format("only the printed mfu is affected: {}{}; the peak is raised to that rate, and earlier mfu is too high",
                faster, shown);
}

PeakTracker make_peak(device::Device& device, DType compute, const config::Config& config, comm::World& world) {
  if (config.hardware.peak_tflops > 0) return {config.hardware.peak_tflops * 1e12, "user"};
  // Either all ranks run windows between steps or none does, since a rank with a GPU has no microbenchmark to join in
  // with.
  const bool gpu = device.kind() == device::DeviceKind::cuda;
  double gpus[] = {gpu ? 1.0 : 0.0};
  world.control().sum(gpus);
  if (gpu) {
    if (const auto known = data_sheet_peak(device.gpu().name, compute)) return {*known, "data sheet"};
    return {best_product_flops(device, compute), "measured", "library GEMMs"};
  }
  const int cores = device::share_of_cores(1), local = world.local_size();
  const auto loop = std::make_shared<PeakWindows>(device, compute, world.local_rank(), local);
  const std::string unit(loop->unit());
  if (gpus[0] > 0) {
    std::vector<double> rates(PeakTracker::kAtStart);
    loop->run(rates);
    return {*std::max_element(rates.begin(), rates.end()), "measured", unit};
  }
  // If the ranks' threads outnumber the host's cores, they time-share them, and a window may fit into one time slice.
  // Its rate is then scaled down by the share of the cores that each rank gets.
  const double share = std::min(1.0, static_cast<double>(cores) / (local * std::min(cores, device.threads())));
  PeakTracker peak(unit, [loop, share, &world](std::span<double> rates) {
    if (world.size() > 1) world.control().barrier();
    loop->run(rates);
    if (world.size() > 1) world.control().sum(rates);
    for (double& rate : rates) rate *= share / world.size();
  });
  peak.measure();
  return peak;
}

std::string to_string(const PeakReport& peak) {
  std::string text = format("{:.3g} TFLOP/s ({}", peak.flops * 1e-12, peak.origin);
  if (!peak.unit.empty()) text += ": " + peak.unit;
  if (!peak.raised_by.empty()) {
    text += ", raised to the rate of " + peak.raised_by;
  } else if (peak.windows > 0) {
    text += format(", best of {} windows", peak.windows);
  }
  return text + ")";
}

}  // namespace trainer::setup
