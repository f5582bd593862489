#pragma once
// The few properties of a SentencePiece model that its library does not expose, read from the protocol buffer itself.
#include <cstdint>
#include <optional>
#include <string>
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
  std::string_view rules;      // the name of the character map, within the model's bytes: "nmt_nfkc"
  std::string_view extension;  // field kExtension, within the model's bytes; empty: none
};

/// The field of ModelProto in which this program stores tokens that the model lacks. The format reserves the numbers
/// from 200 for extensions, so that other programs ignore it.
inline constexpr uint32_t kExtension = 1000;

/// Reads ModelProto of sentencepiece_model.proto, or returns an empty result when the bytes are not a well-formed
/// message. Fields: pieces = 1 with piece = 1. trainer_spec = 2 with model_type = 3 and
/// treat_whitespace_as_suffix = 24. normalizer_spec = 3 with name = 1,
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

/// Appended to a serialized model, these switch its dummy prefix off or on: a repeated sub-message overrides field by
/// field.
inline constexpr std::string_view kNoDummyPrefix{"\x1a\x02\x18\x00", 4}, kDummyPrefix{"\x1a\x02\x18\x01", 4};

/// Returns a length-delimited field kExtension, to be appended to a serialized model.
std::string extension_field(std::string_view bytes);

}  // namespace trainer::data
