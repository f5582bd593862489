#pragma once
// Numbers as people read them, alike in progress lines, summary and report. NaN and infinity become "-".
#include <concepts>
#include <cstdint>
#include <string>

namespace trainer {

/// Three significant digits with k, M, G, T: "950", "12.3k", "124M".
std::string format_count(double value);
template <std::integral T>
std::string format_count(T value) {
  return format_count(static_cast<double>(value));
}
/// "512 B", "1.50 MiB", "23.4 GiB".
std::string format_bytes(double bytes);
template <std::integral T>
std::string format_bytes(T bytes) {
  return format_bytes(static_cast<double>(bytes));
}
/// "41.2 %" of a share of one.
std::string format_percent(double share);
/// "8.2 s", "3m05s", "2h07m", "3d04h": at most two units.
std::string format_duration(double seconds);
/// `digits` significant digits without an exponent where that is short: "3.214", "0.00012", "3e-08".
std::string format_number(double value, int digits = 4);

/// "1 rank", "2 ranks".
std::string counted(int64_t count, const char* what);

}  // namespace trainer
