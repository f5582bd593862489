#pragma once
// Guesses what a mistyped word was meant to be.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::config {

/// Insertions, deletions, replacements and swaps of neighbours that turn a into b; upper and lower case count as equal.
int edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `word`, if it is near enough for a slip (a third of the letters, at least one); else the
/// first one that begins with it.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates);

/// `; did you mean "tensor"?`, or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace trainer::config
