#pragma once
// `--max-time`: a human-readable duration, and the time after which a run stops.
#include <limits>
#include <string_view>

#include "base/clock.h"

namespace trainer::run {

/// Parses a duration such as "23h50m", "1d12h", "90s", "1.5h" or plain seconds ("5400"), and returns its seconds. The
/// units d, h, m and s may each appear once, largest first. Throws Code::usage for zero and for any other text.
double parse_duration(std::string_view text);

class Deadline {
 public:
  /// Makes a deadline that never passes.
  Deadline() = default;
  /// Makes a deadline that passes after `seconds`.
  explicit Deadline(double seconds) : at_(now_seconds() + seconds) {}

  double seconds_left() const { return at_ - now_seconds(); }
  bool has_passed() const { return seconds_left() <= 0; }

 private:
  double at_ = std::numeric_limits<double>::infinity();
};

}  // namespace trainer::run
