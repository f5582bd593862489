#include "data/model_traits.h"

#include <cstdint>
#include <cstring>

namespace trainer::data {
namespace {

constexpr uint64_t kBpe = 2;  // TrainerSpec.ModelType

/// Reads the fields of one protocol buffer message in order.
class FieldReader {
 public:
  explicit FieldReader(std::string_view message) : rest_(message) {}

  uint64_t number() const { return number_; }
  uint64_t value() const { return value_; }          // for a varint field
  std::string_view bytes() const { return bytes_; }  // for a length-delimited field

  /// Moves to the next field; returns false at the end or if the data is corrupt.
  bool next() {
    uint64_t tag = 0;
    if (rest_.empty() || !varint(tag)) return false;
    number_ = tag >> 3;
    value_ = 0;
    bytes_ = {};
    switch (tag & 7) {
      case 0:
        return varint(value_);
      case 1:
        return take(8);
      case 2: {
        uint64_t length = 0;
        return varint(length) && take(length);
      }
      case 5:
        return take(4);
      default:
        damaged_ = true;
        return false;
    }
  }
  bool damaged() const { return damaged_; }

 private:
  bool varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return true;
    }
    damaged_ = true;
    return false;
  }
  bool take(uint64_t length) {
    if (length > rest_.size()) {
      damaged_ = true;
      return false;
    }
    bytes_ = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return true;
  }

  std::string_view rest_, bytes_;
  uint64_t number_ = 0, value_ = 0;
  bool damaged_ = false;
};

}  // namespace

std::optional<ModelTraits> read_traits(std::string_view serialized) {
  ModelTraits traits;
  FieldReader model(serialized);
  while (model.next()) {
    if (model.number() == kExtension) {
      traits.extension = model.bytes();
      continue;
    }
    FieldReader spec(model.bytes());
    if (model.number() == 1) {
      while (spec.next()) {
        if (spec.number() == 1) traits.nul_in_piece |= spec.bytes().find('\0') != std::string_view::npos;
      }
    } else if (model.number() == 2) {
      while (spec.next()) {
        if (spec.number() == 3) traits.bpe = spec.value() == kBpe;
        if (spec.number() == 24) traits.spaces_behind = spec.value() != 0;
      }
    } else if (model.number() == 3) {
      while (spec.next()) {
        if (spec.number() == 1) traits.rules = spec.bytes();
        if (spec.number() == 2) traits.normalises = !spec.bytes().empty();
        if (spec.number() == 3) traits.dummy_prefix = spec.value() != 0;
        if (spec.number() == 4) traits.trims_spaces = spec.value() != 0;
        if (spec.number() == 5) traits.escapes_spaces = spec.value() != 0;
      }
    }
    if (spec.damaged()) return std::nullopt;
  }
  if (model.damaged()) return std::nullopt;
  return traits;
}

std::string extension_field(std::string_view bytes) {
  std::string field;
  for (uint64_t number : {uint64_t{kExtension} << 3 | 2, uint64_t{bytes.size()}}) {
    for (; number >= 0x80; number >>= 7) field += static_cast<char>(number | 0x80);
    field += static_cast<char>(number);
  }
  return field.append(bytes);
}

std::vector<ModelPiece> read_pieces(std::string_view serialized) {
  std::vector<ModelPiece> pieces;
  FieldReader model(serialized);
  while (model.next()) {
    if (model.number() != 1) continue;
    ModelPiece piece;
    FieldReader fields(model.bytes());
    while (fields.next()) {
      if (fields.number() == 1) piece.text = fields.bytes();
      if (fields.number() == 2 && fields.bytes().size() == sizeof piece.score)
        std::memcpy(&piece.score, fields.bytes().data(), sizeof piece.score);
      if (fields.number() == 3) piece.kind = static_cast<PieceKind>(fields.value());
    }
    pieces.push_back(piece);
  }
  return pieces;
}

}  // namespace trainer::data
