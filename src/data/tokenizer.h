#pragma once
// The tokenizer of a run: text to tokens and back. There are two kinds behind one interface.
//
// SentencePiece models. Trained models are lossless (BPE with byte fallback, identity normalisation, no dummy prefix,
// spaces kept); "\n" is a user-defined symbol, EOS ends a document. Text is encoded line by line (a line with its
// "\n"), so that a document may be split after any newline, unless the model changes text (normalization, removal of
// spaces) or has pieces that continue after a line end: then the library gets whole documents, or parts at whose ends
// no token spans the cut. Some models cannot join symbols across a space: BPE whose
// pieces contain a space only at the front, like all models trained here. Then lines are encoded word by word with a
// cache, which yields the same tokens many times faster. Bytes that are not valid UTF-8 and U+2581 (SentencePiece's
// mark of a space) become byte tokens. So with byte fallback decode(encode(x)) returns any byte string unchanged.
//
// Byte-level BPE, as in GPT-2 and its successors: a tokenizer.json, or older files that are converted to it. Patterns
// split text into words, which may contain several newlines, so that documents are split between words. Special tokens
// such as <|endoftext|> are never produced from text. Decoding restores any byte string unchanged, or its normal form
// if the file specifies normalisation (NFC).
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/post_processor.h"
#include "data/special_tokens.h"
#include "data/text.h"

namespace trainer::data {

class TextEncoder;
class TokenizerModel;

/// Text to train a tokenizer on, and its share of the sample.
struct TrainingText {
  std::vector<std::string> files;
  TextOptions options;
  double share = 1;
};

class Tokenizer {
 public:
  /// Reads a SentencePiece model, with the tokens that find_added_tokens() finds for a tokenizer.model, a
  /// tokenizer.json, a merges.txt (vocab.bpe), with the vocab.json next to it if there is one, or a file of ranks
  /// (tiktoken), recognized by their contents. In a folder it is the first of tokenizer.model, tokenizer.json,
  /// merges.txt, vocab.bpe and *.tiktoken. Throws Code::data naming the file when it is missing, corrupt or of a
  /// different kind.
  /// Special tokens are those of the files next to it, as in read_special_tokens(). Documents end with the configured
  /// EOS, or if that ends turns of a chat, with the tokenizer's own. As in transformers, the post-processor of a
  /// tokenizer.json decides whether texts begin with BOS; without this file, add_bos_token of tokenizer_config.json.
  static Tokenizer load(const std::string& path);
  /// `serialized` is the result of bytes(): a SentencePiece model or a tokenizer.json.
  static Tokenizer from_bytes(std::string serialized, const std::string& origin, SpecialTokens special = {});
  /// Trains a SentencePiece model on the texts of `files` (a sample of at most `max_bytes` spread over them). A pure
  /// function of the texts and of `vocab_size`. Words of 48 or more ASCII letters, such as DNA, and of 24 or more other
  /// characters, as in scripts without spaces, count for at most 2 Mi letters of the sample (a character for four of
  /// them), since the library takes memory and time for each letter of distinct words. Throws Code::data, naming the
  /// limit, when the text is too small for a vocabulary of this size.
  static Tokenizer train(const std::vector<std::string>& files, int64_t vocab_size, const TextOptions& options = {},
                         int64_t max_bytes = kSampleBytes);
  /// Trains on a sample that contains these shares of the texts. The vocabulary begins with the control symbols, which
  /// are special tokens, after the usual ones.
  static Tokenizer train(const std::vector<TrainingText>& texts, int64_t vocab_size, int64_t max_bytes = kSampleBytes,
                         const std::vector<std::string>& control_symbols = {});
  static constexpr int64_t kSampleBytes = int64_t{64} << 20;

  std::vector<int32_t> encode(std::string_view text) const;
  std::string decode(std::span<const int32_t> ids) const;
  std::string decode(const std::vector<int32_t>& ids) const { return decode(std::span(ids)); }
  int64_t vocab_size() const;  // the actual number of pieces
  /// Returns the token that ends documents.
  int32_t eos() const { return eos_; }
  /// Returns the tokens at which generation stops: eos(), and those of special().
  std::vector<int32_t> stops() const;
  const SpecialTokens& special() const { return special_; }
  /// Sets special(). Documents end with its text_end, else with the tokenizer's own token, else with its first EOS.
  void use_special(SpecialTokens special);
  /// Returns the ids of special tokens, which are never found in text, by their names; −1: there is none.
  std::vector<int32_t> special_ids(std::span<const std::string> names) const;
  /// Returns the BOS token of the vocabulary or of the files, whether texts begin with it or not; −1: there is none.
  int32_t bos_token() const;
  /// Makes this token end documents, as it does in existing tokens.
  void use_eos(int32_t eos);
  /// Returns the token that begins each document and prompt; −1: none, as long as use_bos() is not called.
  int32_t bos() const { return bos_; }
  /// Throws Code::data when the token is not in the vocabulary.
  void use_bos(int32_t bos);
  /// Applies data.bos: "auto" follows the tokenizer's files; with a model trained here it is off. Throws
  /// Code::config, naming `origin`, when a BOS token is required but the tokenizer has none, or its files add several.
  void use_bos(config::Bos choice, const std::string& origin);
  const std::string& bytes() const;  // the serialized model
  std::string hash() const;          // XXH3-128 of bytes(), hex
  /// Returns the file name for bytes(): "tokenizer.model" or "tokenizer.json".
  const std::string& file_name() const;

  /// Returns the text of a single token; empty for control symbols. Throws Code::data when id is not in the vocabulary.
  std::string_view piece(int32_t id) const;
  /// Returns the token's name in the vocabulary, including control symbols: "</s>". Throws like piece().
  std::string name_of(int32_t id) const;
  /// Returns the rule for where a document may be split without changing its tokens.
  CutRule cuts() const;
  /// Returns a function for PieceReader that compares the tokens of both sides with those of the whole. Keeps a
  /// reference to the tokenizer.
  SplitCheck split_check() const;
  /// True if the model adds a space before each text, which decoding removes.
  bool dummy_prefix() const;

 private:
  friend class Encoder;
  Tokenizer() = default;
  static Tokenizer open(std::string serialized, const std::string& origin);
  void read_settings(const std::filesystem::path& file);
  void choose_eos(const std::filesystem::path& folder);
  void require_eos(const std::string& origin) const;
  std::optional<int32_t> find(const std::string& name) const;
  std::shared_ptr<const TokenizerModel> model_;
  std::string serialized_, hash_;
  std::string ignored_setting_;  // a message; empty: no setting was ignored
  AddedEnds ends_;               // the tokens that the tokenizer's file adds to texts
  SpecialTokens special_;
  int32_t eos_ = -1, known_bos_ = -1, bos_ = -1;  // the last two: the BOS token named in the files, and the one in use
  bool adds_bos_ = false;
};

/// True if Tokenizer::load() finds a tokenizer's file in the folder.
bool has_tokenizer(const std::filesystem::path& folder);

/// Returns the name under which a checkpoint or a run folder stores a serialized tokenizer: one of kTokenizerFiles.
std::string tokenizer_file_name(std::string_view serialized);
inline constexpr const char* kTokenizerFiles[] = {"tokenizer.model", "tokenizer.json"};

/// Encodes many texts in one thread, with a cache of the tokens of words. Keeps a reference to the tokenizer.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer);
  /// Appends the tokens of `text`, a part of a document. It ends where Tokenizer::cuts() allows, or at the end of the
  /// document; in a line that is too long for memory, before a space. `starts_document` is false for later parts.
  void append(std::string_view text, std::vector<int32_t>& ids, bool starts_document = true);
  /// Returns true if the tokens around text[at] are the same when the text is split there. `inside_word` means that
  /// symbols may be joined there; then the text before it is varied, since the tokens of a run such as "aaaa" depend on
  /// where it begins.
  bool may_split(std::string_view text, size_t at, bool inside_word);

 private:
  std::shared_ptr<TextEncoder> encoder_;
};

/// Converts token ids to text piece by piece for streaming: holds back bytes of an incomplete UTF-8 character. The
/// concatenated results of all calls equal decode() of all ids.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::string push(int32_t id);
  /// Returns the number of bytes that are held back. The next text that is not empty begins with them.
  size_t held_back() const { return pending_.size(); }
  /// Returns the bytes that were held back, if any, and resets the decoder.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::string pending_;
  bool at_start_ = true;
};

}  // namespace trainer::data
