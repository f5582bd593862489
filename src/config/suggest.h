#pragma once
// Suggests corrections of mistyped words.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::config {

/// Insertions, deletions, replacements and swaps of neighbours that turn a into b; upper and lower case count as equal.
int edit_distance(std::string_view a, std::string_view b);

/// Returns the candidate nearest to `word`, if they differ by at most a third of the letters, or by one. Else returns
/// the first candidate that begins with `word`.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates);

/// `; did you mean "tensor"?`, or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace trainer::config
