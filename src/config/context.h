#pragma once
// Context parallelism in the keys of [parallel]: ranks that share sequences, by tokens or by heads in attention.
#include <string>

#include "config/config.h"

namespace trainer::config {

/// Returns how many of parallel.context ranks exchange heads: parallel.context_heads, or, if that is 0, the number with
/// which a rank sends the fewest bytes in attention (bf16), the larger of equals.
int64_t context_heads(const Config& config);
/// Returns how ranks have different tokens of the same sequences, as parentheses: " (heads 8 x tokens 2, gather)";
/// empty if there are no such ranks.
std::string context_text(const Config& config);
/// Returns the sizes that follow, for the log: "1 sequence of 32768 tokens per replica, 8192 tokens per rank"; empty if
/// no ranks share sequences.
std::string context_line(const Config& config);

}  // namespace trainer::config
