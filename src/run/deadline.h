#pragma once
// `--max-time`: a human-readable duration, and the time after which a run stops.
#include <limits>
#include <string_view>

#include "base/clock.h"

namespace trainer::run {

/// Returns the seconds of "23h50m", "1d12h", "90s", "1.5h" or plain seconds ("5400"). Units d, h, m, s, largest first,
/// each once. Throws Code::usage on anything else and on zero.
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
