#pragma once
// A SentencePiece model as tokenizer.json, the format of Hugging Face's tokenizers library.
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/model_traits.h"
#include "data/post_processor.h"

namespace trainer::data {

/// Returns the ids of both halves for every split of a normal piece into two others, the piece with the highest
/// priority first.
std::vector<std::pair<size_t, size_t>> merges_of(const std::vector<ModelPiece>& pieces);

/// Returns the tokenizer.json of a serialized model that Tokenizer accepts, with a post-processor that adds these
/// tokens, or an empty result and a warning in the log if that format cannot represent the model.
///
/// SentencePiece joins the two neighbours whose joint piece has the highest score, and has no list of merges. So each
/// way to split a piece into two others becomes a merge, in the order of the pieces' scores. Hugging Face's library
/// treats U+2581 in a text as a space, whereas this program encodes it as bytes. Logs a warning if text that begins
/// with a space gets other tokens.
std::optional<std::string> sentencepiece_to_json(std::string_view serialized, const NamedId& before = {},
                                                 const NamedId& after = {});

}  // namespace trainer::data
