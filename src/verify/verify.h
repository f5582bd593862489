#pragma once
// `trainer verify`: proves on the machines of a run, with its configuration, that the layout computes what one rank
// computes. Each check is a row of one table. Every rank computes the one-rank reference of a small model itself and
// compares the elements that it holds, so only sums of errors are communicated, and a failure names ranks and hosts.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/world.h"
#include "config/config.h"
#include "tensor/costs.h"

namespace trainer::verify {

class Context;

enum class Result { pass, warning, failure, skipped, error };  // error: the check could not be completed

/// One line of the report. The same on every rank.
struct Finding {
  std::string check = {};    // name of the check
  std::string checked = {};  // names what was compared
  Result result = Result::pass;
  double worst = kUnknown, bound = kUnknown;  // unknown: bits or counts are compared
  std::string where = {};                     // the tensor or operation of the worst value
  std::vector<int> ranks = {};                // at which the check failed
  std::string text = {};                      // a failure, a warning, or the reason for skipping the check
  double seconds = 0;
};

/// A check. `run` is collective and returns the same findings on every rank.
struct Check {
  const char* name;
  const char* proves;
  std::vector<Finding> (*run)(Context&);
  bool repeats;  // with --minutes: again and again, with new data
};
std::span<const Check> checks();

inline constexpr double kNoLimit = 1e9;  // seconds
/// The most ranks that are threads of one process.
inline constexpr int kMostThreads = 16;

struct Options {
  bool full = false;              // the configured model instead of a small one
  std::vector<std::string> only;  // names of checks; empty: all
  double seconds = 60;            // checks that would begin later are skipped; kNoLimit: none
  bool burn_in = false;           // repeats checks until the time is over
};

struct Report {
  std::string layout, model;       // "tensor 4, data 2", "2 layers x 128"
  std::string compute, transport;  // the run's
  bool full = false;
  std::vector<std::string> hosts;  // by rank
  std::vector<Finding> findings;
  double seconds = 0;
  int error = 0;  // exit status of the first error
  bool has(Result result) const;
  /// True if each finding of the check is a pass, and there is one.
  bool passed(std::string_view check) const;
};

/// Runs the checks. `config` must be resolved for this world, with a named strategy. An error that all ranks throw ends
/// its check only, and is a finding; losses or gradients that are not finite are a failure. Each failure is logged when
/// it is found. Throws Code::usage for an unknown name in `only`, Code::plan if one rank cannot hold the model of
/// options.full, Code::comm if a rank is lost. Collective.
Report verify(comm::World& world, const config::Config& config, const Options& options);

inline constexpr int kNothingChecked = 2;
/// Returns the exit status: that of Code::difference for a failure, else that of the first error, 2 if no check passed,
/// else 0. The same on all ranks.
int exit_status_of(const Report& report);

/// Returns the table and the verdict.
std::string to_text(const Report& report);
nlohmann::json to_json(const Report& report);

}  // namespace trainer::verify
