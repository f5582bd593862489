#pragma once
// The few properties of a SentencePiece model that its library does not expose, read from the protocol buffer itself.
#include <optional>
#include <string_view>
#include <vector>

namespace trainer::data {

struct ModelTraits {
  bool bpe = false;
  bool normalises = false;   // has a character map, which may change text
  bool dummy_prefix = true;  // a space is added before the text
  bool trims_spaces = true;
  bool escapes_spaces = true;  // spaces are stored as U+2581
  bool spaces_behind = false;  // pieces have the space after a word
  bool nul_in_piece = false;   // crashes the library: its tries end at NUL, and it throws through noexcept code
};

/// Reads ModelProto of sentencepiece_model.proto, or returns an empty result when the bytes are not a well-formed
/// message. Fields: pieces = 1 with piece = 1. trainer_spec = 2 with model_type = 3 and
/// treat_whitespace_as_suffix = 24. normalizer_spec = 3 with
/// precompiled_charsmap = 2, add_dummy_prefix = 3, remove_extra_whitespaces = 4, escape_whitespaces = 5.
std::optional<ModelTraits> read_traits(std::string_view serialized);

enum class PieceKind { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

struct ModelPiece {
  std::string_view text;  // within the model's bytes
  float score = 0;        // BPE merges the pair with the highest score first
  PieceKind kind = PieceKind::normal;
};
/// Reads the pieces of a model that read_traits() accepts, in order of their ids. Fields of a piece: piece = 1, score =
/// 2, type = 3.
std::vector<ModelPiece> read_pieces(std::string_view serialized);

/// Appended to a serialized model, this switches its dummy prefix off: a repeated sub-message overrides field by field.
inline constexpr std::string_view kNoDummyPrefix{"\x1a\x02\x18\x00", 4};

}  // namespace trainer::data
