#pragma once
// Human-readable numbers, formatted alike in progress lines, the summary and the report. NaN and infinity become "-".
#include <concepts>
#include <cstdint>
#include <string>
#include <utility>

namespace trainer {

/// Formats a value with three significant digits and a suffix k, M, G, T or P: "950", "12.3k", "124M".
std::string format_count(double value);
template <std::integral T>
std::string format_count(T value) {
  return format_count(static_cast<double>(value));
}
/// Returns "512 B", "1.50 MiB", "23.4 GiB".
std::string format_bytes(double bytes);
template <std::integral T>
std::string format_bytes(T bytes) {
  return format_bytes(static_cast<double>(bytes));
}
/// Formats two sizes for a message in which they differ: as numbers of bytes if they would be rounded to the same text.
std::pair<std::string, std::string> format_bytes_apart(double a, double b);
/// Formats a fraction as a percentage: "41.2 %".
std::string format_percent(double share);
/// Formats a duration in at most two units: "8.2 s", "3m05s", "2h07m", "3d04h".
std::string format_duration(double seconds);
/// Formats a value with `digits` significant digits, without an exponent if that is short: "3.214", "0.00012", "3e-08".
std::string format_number(double value, int digits = 4);

/// Returns "1 rank", "2 ranks".
std::string counted(int64_t count, const char* what);

}  // namespace trainer
