#include "config/suggest.h"

#include <algorithm>
#include <cctype>

#include "base/format.h"

namespace trainer::config {
namespace {

int lower(char c) { return std::tolower(static_cast<unsigned char>(c)); }

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  // Rows of the dynamic-programming table for the prefixes of `a` with length i − 2, i − 1 and i.
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::move(last);
    last = row;
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::optional<std::string> best;
  int best_distance = std::max(1, static_cast<int>(word.size()) / 3) + 1;
  for (const std::string& candidate : candidates) {
    const int distance = edit_distance(word, candidate);
    if (distance < best_distance && distance < static_cast<int>(candidate.size())) {
      best = candidate;
      best_distance = distance;
    }
  }
  constexpr size_t kShortestPrefix = 3;
  if (best || word.size() < kShortestPrefix) return best;
  for (const std::string& candidate : candidates) {
    if (candidate.starts_with(word)) return candidate;
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const auto guess = nearest(word, candidates);
  return guess ? format("; did you mean \"{}\"?", *guess) : "";
}

}  // namespace trainer::config
