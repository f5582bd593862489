#pragma once
// Suggests corrections of mistyped words.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::config {

/// Returns the number of insertions, deletions, substitutions and transpositions that turn `a` into `b`,
/// case-insensitively.
int edit_distance(std::string_view a, std::string_view b);

/// Returns the candidate nearest to `word` if they differ in at most a third of the letters of `word`, or in a single
/// letter; else the first candidate that begins with `word`, if it has at least three letters.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates);

/// Returns `; did you mean "tensor"?`, or an empty string.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace trainer::config
