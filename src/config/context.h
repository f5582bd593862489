#pragma once
// Context parallelism in the keys of [parallel]: ranks that share sequences, by tokens or by heads in attention.
#include <string>

#include "config/config.h"

namespace trainer::config {

/// Returns how many of parallel.context ranks exchange heads: parallel.context_heads, or, if that is 0, the number with
/// which a rank sends the fewest bytes in attention (bf16), the larger of equals.
int64_t context_heads(const Config& config);
/// True if ranks have different tokens of the same sequences.
bool shares_tokens(const Config& config);
/// True if the tokens of a sequence can be split over this number of ranks, and each then has enough of them.
bool splits_well(const Config& config, int64_t ranks);
/// Returns the lengths nearest to model.seq_len with which a search could share sequences among the most of `devices`
/// ranks: "parallel.context: seq_len = 100000 cannot be split into 2 x 64 equal segments; use seq_len = 99968 or
/// 100096". Empty if the configured length excludes no number of ranks, or if parallel.context is set.
std::string nearest_lengths(const Config& config, int64_t devices);
/// Returns how many key heads of a rank are gathered at a time: few enough that most of the exchange overlaps with
/// attention to the heads before, enough for long messages.
int64_t gathered_heads(int64_t kv_heads);
/// Returns how ranks have different tokens of the same sequences, as parentheses: " (heads 8 x tokens 2, gather)";
/// empty if no ranks split tokens, or if all do and parallel.context_kv is "auto".
std::string context_text(const Config& config);
/// Returns the line of the start log: "context 8 (ring): 1 sequence of 32768 tokens per replica, 4096 tokens per rank";
/// empty if parallel.context is 1.
std::string context_line(const Config& config);

}  // namespace trainer::config
