#pragma once
// The peak that utilisation is relative to: set by the user, from a data sheet, or measured. A measured peak is the
// best of many short windows, at start-up and between the first steps, since other load can only slow a window down. An
// operator or a step that runs faster raises it.
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "comm/world.h"
#include "config/forward.h"
#include "tensor/costs.h"

namespace trainer::setup {

/// The denominator of utilisation: dense FLOP/s of one device.
struct PeakReport {
  double flops = kUnknown;
  std::string origin = {};                                  // "measured", "data sheet", "user"
  std::string unit = {};                                    // the unit that was measured: "AVX2 fma"
  int64_t windows = 0;                                      // number of windows measured
  double median_flops = kUnknown, lowest_flops = kUnknown;  // over the windows; the highest is `flops`, unless raised
  std::string raised_by = {};  // the work that ran faster than every window: "the GEMMs of step 3"; empty: none
};
/// "0.193 TFLOP/s (measured: AVX2 fma, best of 60 windows)".
std::string to_string(const PeakReport& peak);

class PeakTracker {
 public:
  /// Fills `rates` with the FLOP/s of one device in consecutive windows.
  using Windows = std::function<void(std::span<double> rates)>;
  using Clock = std::function<double()>;

  /// The number of windows at start-up, and per sample between steps.
  static constexpr int kAtStart = 24, kBetweenSteps = 4;
  /// Samples between steps take at most this share of the run, and this many seconds in all.
  static constexpr double kShare = 0.002, kMostSeconds = 1;

  /// Creates a tracker of a known peak. `origin`: "user", "data sheet", or "measured" (on `unit`).
  PeakTracker(double flops, std::string origin, std::string unit = {});
  /// Creates a tracker whose peak is unknown until the first measure().
  PeakTracker(std::string unit, Windows windows, Clock clock = now_seconds);

  /// Returns the highest peak so far, with the median and lowest rate of the windows.
  PeakReport report() const;
  double flops() const { return flops_; }
  bool is_measured() const { return origin_ == "measured"; }

  /// Runs `count` windows and returns the seconds that they took; does nothing if the peak is not measured in windows.
  /// The time does not count towards the samples between steps.
  double measure(int count = kAtStart);
  /// True if the run has lasted long enough for another sample.
  bool is_due() const;
  /// Takes that sample.
  void sample();

  /// Raises a measured peak to `flops`, the FLOP/s per device at which `what` ("the GEMMs of step 3") ran, if that is
  /// higher. Returns a message the first time that a rate exceeds the peak, an empty string after that.
  std::string raise_to_rate(double flops, std::string_view what);

 private:
  double flops_ = kUnknown;
  std::string origin_, unit_, raised_by_;
  Windows windows_;
  Clock clock_;
  double started_ = 0;
  double samples_seconds_ = 0;   // seconds of all samples
  double sample_seconds_ = 1e9;  // seconds of an undisturbed sample: the shortest so far
  std::vector<double> rates_;    // rates of all windows
  bool reported_ = false;
};

/// Determines this device's peak for this compute type; on CPUs, it is measured in windows. measure() and sample() of
/// such a tracker are collective, and the rates are means over the ranks, identical on all of them. Collective. Device
/// and world must outlive the tracker.
PeakTracker make_peak(device::Device& device, DType compute, const config::Config& config, comm::World& world);

}  // namespace trainer::setup
