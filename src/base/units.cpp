#include "base/units.h"

#include <cmath>

#include "base/format.h"

namespace trainer {
namespace {

const std::string kNone = "-";

/// Formats a value in [0, 1024) with three significant digits.
std::string three_digits(double value) { return format("{:.{}f}", value, value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2); }

}  // namespace

std::string format_count(double value) {
  if (!std::isfinite(value)) return kNone;
  if (value < 0) return "-" + format_count(-value);
  constexpr const char* kSuffix[] = {"", "k", "M", "G", "T", "P"};
  size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < std::size(kSuffix); ++unit) value /= 1000;
  if (unit == 0 && value == std::floor(value)) return format("{:.0f}", value);
  return three_digits(value) + kSuffix[unit];
}

std::string format_bytes(double bytes) {
  if (!std::isfinite(bytes)) return kNone;
  if (bytes < 0) return "-" + format_bytes(-bytes);
  constexpr const char* kSuffix[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  for (; bytes >= 1023.5 && unit + 1 < std::size(kSuffix); ++unit) bytes /= 1024;
  return unit == 0 ? format("{:.0f} B", bytes) : format("{} {}", three_digits(bytes), kSuffix[unit]);
}

std::pair<std::string, std::string> format_bytes_apart(double a, double b) {
  std::pair<std::string, std::string> texts(format_bytes(a), format_bytes(b));
  if (a != b && texts.first == texts.second) texts = {format("{:.0f} B", a), format("{:.0f} B", b)};
  return texts;
}

std::string format_percent(double share) { return std::isfinite(share) ? format("{:.1f} %", share * 100) : kNone; }

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return kNone;
  if (seconds < 0) seconds = 0;
  if (seconds < 9.95) return format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 60) return format("{} s", whole);
  if (whole < 3600) return format("{}m{:02}s", whole / 60, whole % 60);
  if (whole < 86400) return format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
  return format("{}d{:02}h", whole / 86400, whole % 86400 / 3600);
}

std::string counted(int64_t count, const char* what) { return format("{} {}{}", count, what, count == 1 ? "" : "s"); }

std::string format_number(double value, int digits) {
  return std::isfinite(value) ? format("{:.{}g}", value, digits) : kNone;
}

}  // namespace trainer
