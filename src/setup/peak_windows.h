#pragma once
// The rate that no operator on a CPU can exceed, measured in short windows. Other programs, other virtual machines on
// the same hardware and changing clocks can only make a window slower. So the peak is the best of many windows, spread
// over time.
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "ops/cpu/peak.h"
#include "tensor/tensor.h"

namespace trainer::setup {

/// The arithmetic unit of a compute type, and the microbenchmark that measures its rate.
struct PeakUnit {
  std::string_view name;  // "AVX2 fma"
  ops::PeakLoop loop;
  DType operands;
};
/// Returns the unit that GEMMs in this compute type can use on a CPU of this instruction set.
PeakUnit peak_unit(device::Isa isa, DType compute);

/// Runs windows of the peak microbenchmark on all threads of a CPU device at the same time. Each thread has its own
/// operands and results, which stay in L1.
class PeakWindows {
 public:
  static constexpr double kSeconds = 1e-3;  // approximate length of a window

  /// Takes some milliseconds to calibrate the number of rounds in a window. `local_rank` and `local_size`: this rank's
  /// index among the ranks on the host, and their number; all have the same number of threads. The device must outlive
  /// this object.
  PeakWindows(device::Device& device, DType compute, int local_rank = 0, int local_size = 1);
  ~PeakWindows();

  std::string_view unit() const { return unit_.name; }
  /// rates ← FLOP/s of consecutive windows: the work of all threads divided by the time from the first start to the
  /// last end. If the threads occupy all CPUs that they may use, each is pinned to one CPU meanwhile, since the system
  /// is slow to spread threads that wake up only briefly. Ranks that begin within a millisecond of each other run their
  /// windows concurrently.
  void run(std::span<double> rates);

 private:
  struct Worker;
  void run_on_all_threads(const std::function<void(Worker&)>& work);
  double seconds_of(int64_t rounds);  // runs the loop on all threads: from the first start to the last end

  device::Device& device_;
  PeakUnit unit_;
  int first_worker_, workers_of_host_;
  std::vector<std::unique_ptr<Worker>> workers_;  // one per thread
  int64_t rounds_ = 0;                            // rounds of the loop in a window
};

}  // namespace trainer::setup
