#pragma once
// A word after a verb that is none of those it takes is refused with the nearest one.
#include <string>
#include <vector>

#include "base/error.h"
#include "base/join.h"
#include "config/suggest.h"

namespace trainer::cli {

/// Returns the error for a word after a verb that is none of `known`.
inline Error unknown_word(const std::string& verb, const std::string& word, const std::vector<std::string>& known) {
  return {Code::usage, format("`{} {}`: expected one of {}{}", verb, word, fmt::join(known, ", "),
                              config::did_you_mean(word, known))};
}

}  // namespace trainer::cli
