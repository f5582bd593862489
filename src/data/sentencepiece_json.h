#pragma once
// A SentencePiece model as tokenizer.json, the format of Hugging Face's tokenizers library.
#include <optional>
#include <string>
#include <string_view>

namespace trainer::data {

/// Returns the tokenizer.json of a serialized model that Tokenizer accepts, or an empty result if that format cannot
/// represent the model: unigram models, and those that normalize text.
///
/// SentencePiece joins the two neighbours whose joint piece has the highest score, and has no list of merges. So each
/// way to split a piece into two others becomes a merge, in the order of the pieces' scores. Hugging Face's library
/// treats U+2581 in a text as a space, whereas this program encodes it as bytes. `begin` is the piece that begins each
/// text; empty: none.
std::optional<std::string> sentencepiece_to_json(std::string_view serialized, std::string_view begin = {});

}  // namespace trainer::data
