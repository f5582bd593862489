#include "config/faults.h"

#include <charconv>
#include <vector>

#include "base/format.h"
#include "config/validate.h"

namespace trainer::config {
namespace {

std::optional<int64_t> number_in(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

}  // namespace

std::optional<Fault> planted_fault(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t end = 0; end != std::string_view::npos; text.remove_prefix(end == text.npos ? text.size() : end + 1))
    words.push_back(text.substr(0, end = text.find(':')));
  if (words[0] == "slow") {
    const auto rank = words.size() == 3 ? number_in(words[1]) : std::nullopt;
    const auto seconds = rank ? injected_delay(format("delay:{}", words[2])) : std::nullopt;
    if (!seconds) return std::nullopt;
    return Fault{.kind = Fault::Kind::slow, .rank = *rank, .tensor = {}, .seconds = *seconds};
  }
  const bool element = words[0] == "gradient" || words[0] == "weight";
  const bool byte = words[0] == "message" || words[0] == "link" || words[0] == "file";
  if (!element && !byte) return std::nullopt;
  if (words.size() != (element ? 5U : 3U)) return std::nullopt;
  const auto rank = number_in(words[1]), at = number_in(words[element ? 3 : 2]);
  const auto bit = element ? number_in(words[4]) : 0;
  if (!rank || !at || !bit || *bit > 63 || (element && words[2].empty())) return std::nullopt;
  using Kind = Fault::Kind;
  return Fault{.kind = words[0] == "gradient"  ? Kind::gradient
                       : words[0] == "weight"  ? Kind::weight
                       : words[0] == "message" ? Kind::message
                       : words[0] == "link"    ? Kind::link
                                               : Kind::file,
               .rank = *rank,
               .tensor = element ? std::string(words[2]) : "",
               .at = *at,
               .bit = *bit};
}

}  // namespace trainer::config
