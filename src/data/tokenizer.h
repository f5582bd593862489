#pragma once
// The tokenizer: a SentencePiece model. Trained models are lossless (BPE with byte fallback, identity normalisation,
// no dummy prefix, spaces kept); "\n" is a user-defined symbol, EOS ends a document.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::data {

class Tokenizer {
 public:
  /// From a .model file; throws Code::data naming the file when it is missing or not a SentencePiece model.
  static Tokenizer load(const std::string& path);
  static Tokenizer from_bytes(std::string serialized, const std::string& origin);
  /// Trains on the texts of `files` (a sample of at most `max_bytes` spread over them). Deterministic.
  static Tokenizer train(const std::vector<std::string>& files, int64_t vocab_size, int threads, int64_t max_bytes = int64_t{64} << 20);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  std::vector<int32_t> encode(std::string_view text) const;
  std::string decode(const std::vector<int32_t>& ids) const;
  int64_t vocab_size() const;  // pieces it really has
  int32_t eos() const;
  const std::string& bytes() const;  // the serialized model
  std::string hash() const;          // XXH3-128 of bytes(), hex

 private:
  Tokenizer();
  struct State;
  std::unique_ptr<State> state_;
};

/// Turns token ids into text piece by piece for streaming: holds back bytes of an unfinished UTF-8 character.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::string push(int32_t id);
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
  size_t printed_ = 0;
};

}  // namespace trainer::data
