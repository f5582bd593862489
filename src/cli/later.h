#pragma once
// Parts of the command line that are not built yet are refused as such, not as "unknown".
#include <string>
#include <vector>

#include "base/error.h"
#include "base/join.h"
#include "config/suggest.h"

namespace trainer::cli {

inline Error not_built_yet(const std::string& what) {
  return {Code::usage,
          format("`{}` is not built yet in this version; there are: train, eval, generate, tokenize, plan, bench "
                 "peak|gemm|attention|elementwise|optimizer|step|memory|collectives|all, checkpoint "
                 "inspect|verify|strip, config check|show|reference",
                 what)};
}
/// Returns the error for a word after a verb that is none of `known`.
inline Error unknown_word(const std::string& verb, const std::string& word, const std::vector<std::string>& known) {
  return {Code::usage, format("`{} {}`: expected one of {}{}", verb, word, fmt::join(known, ", "),
                              config::did_you_mean(word, known))};
}

}  // namespace trainer::cli
