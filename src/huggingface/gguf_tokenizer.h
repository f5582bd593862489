#pragma once
// The tokenizer of a checkpoint as metadata of a GGUF file.
#include <cstdint>
#include <optional>

#include "data/tokenizer.h"
#include "huggingface/gguf_file.h"

namespace trainer::huggingface {

/// Appends the tokenizer: its tokens, padded with unused ones to `rows`, merges or scores, and special tokens. Throws
/// Code::checkpoint for one that llama.cpp cannot represent.
void add_tokenizer(const std::optional<data::Tokenizer>& tokenizer, const data::SpecialTokens& special, int64_t rows,
                   GgufMetadata& metadata);

}  // namespace trainer::huggingface
