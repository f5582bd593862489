#pragma once
// The peak to which utilisation is relative: the user's, a data sheet's, or measured. A measured one is the best of
// many short windows, at start-up and between the first steps, since other load can only make a window slower. An
// operator or a step that runs faster raises it.
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "comm/world.h"
#include "config/config.h"
#include "tensor/costs.h"

namespace trainer::setup {

/// The denominator of utilisation: dense FLOP/s of one device.
struct PeakReport {
  double flops = kUnknown;
  std::string origin = {};                                  // "measured", "data sheet", "user"
  std::string unit = {};                                    // measured: the unit, "AVX2 fma"
  int64_t windows = 0;                                      // number of measured windows of that unit
  double median_flops = kUnknown, lowest_flops = kUnknown;  // of the windows; the best is `flops`, unless raised
  std::string raised_by = {};  // what ran faster than every window, "the GEMMs of step 3"; empty: none
};
/// "0.193 TFLOP/s (measured: AVX2 fma, best of 60 windows)".
std::string to_string(const PeakReport& peak);

class PeakTracker {
 public:
  /// Fills `rates` with the FLOP/s of one device, one per window.
  using Windows = std::function<void(std::span<double> rates)>;
  using Clock = std::function<double()>;

  /// The number of windows measured at start-up, and in a sample between steps.
  static constexpr int kAtStart = 24, kBetweenSteps = 4;
  /// Samples between steps take at most this share of the run, and this many seconds in all.
  static constexpr double kShare = 0.002, kMostSeconds = 1;

  /// Makes a tracker of a known peak: FLOP/s, "user", "data sheet" or "measured" on a `unit`.
  PeakTracker(double flops, std::string origin, std::string unit = {});
  /// Makes a tracker whose peak is not known before the first measure().
  PeakTracker(std::string unit, Windows windows, Clock clock = now_seconds);

  /// Returns the best peak so far, with the median and the lowest of the windows.
  PeakReport report() const;
  double flops() const { return flops_; }
  bool is_measured() const { return origin_ == "measured"; }

  /// Runs windows and returns the seconds they took; does nothing if the peak was not measured by windows. Not counted
  /// as a sample between steps.
  double measure(int count = kAtStart);
  /// True if the run has lasted long enough for another sample.
  bool is_due() const;
  void visit();

  /// Raises a measured peak to `flops`, the FLOP/s of one device with which `what` ("its GEMMs") ran, if that is
  /// higher. Returns a message about it the first time; else an empty one.
  std::string raise_to_rate(double flops, std::string_view what);

 private:
  double flops_ = kUnknown;
  std::string origin_, unit_, raised_by_;
  Windows windows_;
  Clock clock_;
  double started_ = 0;
  double visits_seconds_ = 0;   // seconds of all samples
  double visit_seconds_ = 1e9;  // seconds of an undisturbed sample
  std::vector<double> rates_;   // rates of all windows
  bool told_ = false;
};

/// Finds this device's peak in this compute type, by windows if it is measured on CPUs. measure() and visit() of such a
/// tracker are collective and return the same rates on all ranks, means over the ranks. Collective. Device and world
/// must outlive the tracker.
PeakTracker make_peak(device::Device& device, DType compute, const config::Config& config, comm::World& world);

}  // namespace trainer::setup
