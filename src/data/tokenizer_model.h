#pragma once
// The interface of every kind of tokenizer: a vocabulary, and encoders.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/post_processor.h"
#include "data/text.h"

namespace trainer::data {

/// Encodes many texts in one thread, with a cache of the tokens of words.
class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  /// Like Encoder::append().
  virtual void append(std::string_view text, std::vector<int32_t>& ids, bool starts_document) = 0;
};

/// Immutable after construction, and shared by threads.
class TokenizerModel {
 public:
  virtual ~TokenizerModel() = default;
  /// Returns an encoder, which keeps a reference to this. Throws Code::data for models whose encoding is not supported;
  /// texts can still be decoded.
  virtual std::unique_ptr<TextEncoder> encoder() const = 0;
  /// Returns the name of a token of the vocabulary, including control symbols.
  virtual std::string name_of(int32_t id) const = 0;

  struct Facts {
    std::vector<std::string> pieces;  // bytes that each token represents; none for control symbols
    int32_t eos = -1;
    int32_t bos = -1;           // −1: the vocabulary has none
    AddedEnds ends;             // the tokens that the model's file adds to texts
    bool dummy_prefix = false;  // a space is added before each text, which decoding removes
    bool splits_words = false;  // lines are split into words (see tokenizer.h)
    CutRule cuts = CutRule::after_newline;
    std::string file_name;  // name of the serialized form: "tokenizer.model"
  };
  const Facts& facts() const { return facts_; }

 protected:
  Facts facts_;
};

/// Creates the model from a serialized SentencePiece model. Throws Code::data, naming `origin`, when it cannot be used.
std::unique_ptr<TokenizerModel> make_sentencepiece(const std::string& serialized, const std::string& origin);
/// Creates the model from a tokenizer.json with byte-level BPE. Throws Code::data, naming `origin`, when the file is
/// corrupt or of a different kind.
std::unique_ptr<TokenizerModel> make_byte_bpe(std::string_view json, const std::string& origin);

}  // namespace trainer::data
