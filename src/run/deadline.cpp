#include "run/deadline.h"

#include <charconv>
#include <cmath>

#include "base/error.h"

namespace trainer::run {
namespace {

struct Unit {
  char letter;
  double seconds;
};
constexpr Unit kUnits[] = {{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}};

[[noreturn]] void refuse(std::string_view text) {
  throw Error(
      Code::usage,
      format("\"{}\" is not a duration; expected a time above zero, such as 23h50m, 90s, 1.5h or plain seconds", text));
}

}  // namespace

double parse_duration(std::string_view text) {
  double total = 0;
  size_t first_unit = 0;  // the largest unit that may follow
  std::string_view rest = text;
  do {
    double value = 0;
    const auto [end, status] = std::from_chars(rest.data(), rest.data() + rest.size(), value, std::chars_format::fixed);
    if (status != std::errc() || !std::isfinite(value) || value < 0) refuse(text);
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    if (rest.empty()) {
      if (first_unit != 0) refuse(text);  // "1h30" is ambiguous: minutes or seconds?
      total = value;
      break;
    }
    size_t unit = first_unit;
    while (unit < std::size(kUnits) && kUnits[unit].letter != rest.front()) ++unit;
    if (unit == std::size(kUnits)) refuse(text);
    total += value * kUnits[unit].seconds;
    first_unit = unit + 1;
    rest.remove_prefix(1);
  } while (!rest.empty());
  if (total <= 0) refuse(text);
  return total;
}

}  // namespace trainer::run
