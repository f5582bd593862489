#pragma once
// SlowRanks: finds ranks for which other ranks wait (log.ranks_every). A step takes equally long on all ranks, so each
// rank's own time is compared: the step without its waits for others. Where NCCL moves tensors between GPUs, the host
// does not see waits, and each GPU's speed is measured instead, with a few GEMMs after each window. Ranks of different
// pipeline stages have different work: each is compared with the ranks of its own stage.
#include <array>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/world.h"
#include "config/config.h"
#include "report/ranks.h"

namespace trainer::run {

class SlowRanks {
 public:
  /// `world` and `device` must outlive this object. Allocates the memory of the measurement of a GPU.
  SlowRanks(comm::World& world, const config::Config& config, device::Device& device);
  ~SlowRanks();

  /// Sleeps if debug.inject makes this rank's steps take longer.
  void inject() const;
  /// Adds a step; `meter` has counted only this step.
  void add(double step_ms, double data_ms, const Meter& meter);
  /// Ends a window of steps: returns the times of all ranks; empty if there are none, or one rank. Collective.
  std::optional<report::RanksReport> compare(int64_t step);
  /// Returns a warning for each host and cause that compare() has found for the first time.
  std::vector<std::string> warnings();

  /// The numbers that a rank sends.
  struct Sample {
    double own_ms = 0, data_ms = 0, wait_ms = 0, probe_ms = 0;  // medians of the window; probe_ms 0: not measured
  };
  /// Takes the samples of all ranks into account. Not collective.
  report::RanksReport judge(int64_t step, const std::vector<Sample>& samples, const std::vector<std::string>& hosts);

 private:
  /// Returns the time of a GEMM on this rank's GPU; 0 if it cannot be measured: an exception would leave the other
  /// ranks waiting.
  double probe_ms() noexcept;

  struct Probe;
  enum Cause : uint8_t { reading, computing, multiplying, kCauses };
  comm::World& world_;
  const int64_t stages_;
  std::unique_ptr<Probe> probe_;  // null: not measured
  double injected_s_ = 0;
  std::vector<double> own_, data_, wait_;  // by step of the window
  std::vector<std::string> hosts_;         // by rank
  std::array<report::SlowWindows, kCauses> windows_;
  std::set<std::pair<std::string, Cause>> warned_;
};

}  // namespace trainer::run
