// Values of optimizer offload keys that are written as text.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "config/offload.h"

namespace trainer::config {
namespace {

/// Parses a decimal number without sign or exponent into digits and a power of ten; returns an empty result for other
/// or too long texts.
std::optional<Fraction> decimal_of(std::string_view text) {
  Fraction value;
  bool point = false, digits = false;
  for (const char c : text) {
    if (c == '.' && !point) {
      point = true;
      continue;
    }
    if (c < '0' || c > '9' || value.num > 100'000'000 || value.den > 100'000'000) return std::nullopt;
    digits = true;
    value.num = 10 * value.num + (c - '0');
    if (point) value.den *= 10;
  }
  return digits ? std::optional(value) : std::nullopt;
}

std::optional<double> positive_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && std::isfinite(value) && value > 0 ? std::optional(value) : std::nullopt;
}

}  // namespace

std::optional<Fraction> fraction_of(std::string_view text) {
  const size_t slash = text.find('/');
  std::optional<Fraction> value = decimal_of(text.substr(0, slash));
  if (slash != std::string_view::npos && value) {
    const std::optional<Fraction> below = decimal_of(text.substr(slash + 1));
    if (!below || below->den != 1 || value->den != 1) return std::nullopt;
    value->den = below->num;
  }
  if (!value || value->den == 0 || value->num > value->den) return std::nullopt;
  const int64_t common = std::gcd(value->num, value->den);
  return Fraction{value->num / common, value->den / common};
}

std::optional<EmulatedRates> emulated_rates(std::string_view text) {
  EmulatedRates rates;
  if (text == "h100") return rates;
  if (text == "a100") return EmulatedRates{.to_device = 24, .to_host = 24, .host = 1.2, .device = 60, .memory = 33.75};
  const std::pair<std::string_view, double*> parts[] = {
      {"to_device=", &rates.to_device}, {"to_host=", &rates.to_host}, {"host=", &rates.host},
      {"device=", &rates.device},       {"memory=", &rates.memory},   {"pageable=", &rates.pageable}};
  for (size_t comma = 0; comma != std::string_view::npos; text.remove_prefix(comma == text.npos ? 0 : comma + 1)) {
    comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    const auto named = std::ranges::find_if(parts, [&](const auto& each) { return part.starts_with(each.first); });
    if (named == std::end(parts)) return std::nullopt;
    const std::optional<double> value = positive_number(part.substr(named->first.size()));
    if (!value) return std::nullopt;
    *named->second = *value;
  }
  return rates;
}

}  // namespace trainer::config
