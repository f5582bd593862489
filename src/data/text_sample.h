#pragma once
// A sample of text files, for training tokenizers.
#include <string>
#include <vector>

#include "data/text.h"

namespace trainer::data {

/// Returns text of about `max_bytes`, drawn evenly over all bytes of the files; all of it if they are smaller. It is
/// split into lines of at most `max_line` bytes without their "\n", as valid UTF-8; longer lines are split before
/// spaces. Takes time and memory for the sample, not for the files, except for compressed files, which are read whole,
/// and the longest line of .jsonl. A pure function of its arguments and the files' content.
std::vector<std::string> sample_lines(const std::vector<std::string>& files, const TextOptions& options,
                                      int64_t max_bytes, size_t max_line);

}  // namespace trainer::data
