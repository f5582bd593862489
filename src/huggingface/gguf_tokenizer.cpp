#include "huggingface/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <ranges>
#include <unordered_set>

#include "base/error.h"
#include "base/join.h"
#include "base/json.h"
#include "base/log.h"
#include "data/added_tokens.h"
#include "data/bpe_file.h"
#include "data/chat.h"
#include "data/model_traits.h"
#include "data/split_pattern.h"

namespace trainer::huggingface {
namespace {

// Kinds of tokens, with their numbers in the format. They are those of SentencePiece models.
constexpr int32_t kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5;

[[noreturn]] void cannot_represent(const std::string& what) {
  throw Error(Code::checkpoint, format("the tokenizer cannot be exported as GGUF: {}", what));
}

/// Returns llama.cpp's name of the steps that split text into words, which it has built in.
std::string name_of_patterns(const data::BpeSpec& spec) {
  struct Known {
    const char* name;
    std::vector<std::string_view> patterns;
  };
  const std::array known = {Known{"gpt-2", {data::kGpt2Pattern}}, Known{"smollm", {"\\p{N}", data::kGpt2Pattern}},
                            Known{"qwen2", {data::kQwen2Pattern}},
                            Known{spec.ignore_merges ? "llama-bpe" : "dbrx", {data::kLlama3Pattern}}};
  for (const Known& each : known) {
    if (!std::ranges::equal(each.patterns, spec.splits, {}, {}, &data::BpeSpec::Split::pattern)) continue;
    if (spec.ignore_merges && each.name != std::string_view("llama-bpe"))
      cannot_represent(
          format("llama.cpp takes words that are tokens whole (ignore_merges) only with the pattern of "
                 "Llama 3, not with that of {}",
                 each.name));
    return each.name;
  }
  cannot_represent(format("llama.cpp does not split text by {}; it has the patterns of GPT-2, SmolLM, Llama 3 and Qwen",
                          fmt::join(spec.splits | std::views::transform(&data::BpeSpec::Split::pattern), " and ")));
}

/// A token that is found in text, or a special one, whose text hides others. Those of an earlier pass are found first.
struct FoundToken {
  std::string_view text;
  bool special = false;
  int pass = 0;
};

/// True if text can begin with the first and go on with the second, which begins inside the first.
bool overlap(std::string_view first, std::string_view second) {
  if (first.find(second.front(), 1) == first.npos) return false;
  for (size_t common = 1; common < first.size() && common < second.size(); ++common)
    if (first.ends_with(second.substr(0, common))) return true;
  return false;
}

/// Throws if tokens can share text: llama.cpp looks for the longest one first, and does not look for special ones; this
/// program, like the tokenizers library, for the first one in the text.
void require_separate(const std::vector<FoundToken>& tokens) {
  for (const FoundToken& first : tokens)
    for (const FoundToken& second : tokens) {
      if (second.special || &first == &second || (first.special && first.pass != second.pass)) continue;
      const bool is_hidden = first.special || first.pass > second.pass,
                 is_late = first.special || first.pass != second.pass || second.text.size() >= first.text.size();
      if ((is_hidden && first.text.find(second.text) != second.text.npos) ||
          (is_late && overlap(first.text, second.text)))
        cannot_represent(
            format("llama.cpp would prefer {} to {} where they overlap in the text", second.text, first.text));
    }
}

/// Returns how an added token is found. Throws for one that llama.cpp does not find in the same way.
FoundToken found(const data::AddedToken& token) {
  if (!token.special && (token.lstrip || token.rstrip))
    cannot_represent(format("llama.cpp does not remove the spaces next to {} (lstrip, rstrip)", token.content));
  return {token.content, token.special, token.normalized ? 1 : 0};
}

/// Tokens in the order of their ids.
struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> kinds;
};

/// Throws if text can become a token that SentencePiece never makes from text: llama.cpp joins any two tokens whose
/// joint text is a token.
void require_unreachable(const Vocabulary& vocabulary) {
  const std::unordered_set<std::string_view> all(vocabulary.tokens.begin(), vocabulary.tokens.end());
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string_view text = vocabulary.tokens[id];
    if (vocabulary.kinds[id] == kNormal || vocabulary.kinds[id] == kUserDefined) continue;
    for (size_t cut = 1; cut < text.size(); ++cut)
      if (all.contains(text.substr(0, cut)) && all.contains(text.substr(cut)))
        cannot_represent(
            format("llama.cpp would join {} and {} in text to {}", text.substr(0, cut), text.substr(cut), text));
  }
}

void add_bpe(const data::Tokenizer& tokenizer, Vocabulary& vocabulary, GgufMetadata& metadata) {
  const data::BpeSpec spec = data::parse_bpe(tokenizer.bytes(), tokenizer.file_name());
  metadata.emplace_back("tokenizer.ggml.model", std::string("gpt2"));
  metadata.emplace_back("tokenizer.ggml.pre", name_of_patterns(spec));
  if (spec.nfc) {
    metadata.emplace_back("tokenizer.ggml.normalizer.nfc", true);
    log::info(
        "the tokenizer normalises text (NFC): versions of llama.cpp that do not read tokenizer.ggml.normalizer.nfc "
        "give "
        "letters with separate accents other tokens");
  }
  std::vector<FoundToken> all;
  for (const data::AddedToken& token : spec.added) all.push_back(found(token));
  require_separate(all);
  vocabulary.tokens = spec.names;
  vocabulary.kinds.assign(spec.names.size(), kNormal);
  for (size_t id = 0; id < spec.pieces.size(); ++id)
    if (spec.pieces[id].empty()) vocabulary.kinds[id] = kControl;
  for (const data::AddedToken& token : spec.added)
    if (!token.special) vocabulary.kinds[static_cast<size_t>(token.id)] = kUserDefined;
  std::vector<std::string> merges;
  for (const data::BpeSpec::Merge& merge : spec.merges)
    merges.push_back(spec.names[static_cast<size_t>(merge.left)] + " " + spec.names[static_cast<size_t>(merge.right)]);
  metadata.emplace_back("tokenizer.ggml.merges", std::move(merges));
}

void add_sentencepiece(const data::Tokenizer& tokenizer, int64_t rows, Vocabulary& vocabulary, GgufMetadata& metadata) {
  const std::optional<data::ModelTraits> traits = data::read_traits(tokenizer.bytes());
  if (!traits || !traits->bpe || traits->normalises || traits->trims_spaces || !traits->escapes_spaces ||
      traits->spaces_behind)
    cannot_represent("of SentencePiece models, only BPE without normalisation is supported");
  metadata.emplace_back("tokenizer.ggml.model", std::string("llama"));
  metadata.emplace_back("tokenizer.ggml.pre", std::string("default"));
  metadata.emplace_back("tokenizer.ggml.add_space_prefix", traits->dummy_prefix);
  const data::AddedTokens added = data::read_added_tokens(tokenizer.bytes(), "the tokenizer");
  if (traits->dummy_prefix && added.prefixes_words_only())
    cannot_represent(
        "llama.cpp adds a space before texts that begin with one, the Metaspace of this tokenizer.json does not; "
        "import "
        "the model again without its tokenizer.json to use tokenizer.model, which does");
  std::vector<float> scores;
  std::vector<FoundToken> all;
  bool has_bytes = false, has_spaces = false;
  for (const data::ModelPiece& piece : data::read_pieces(tokenizer.bytes())) {
    vocabulary.tokens.emplace_back(piece.text);
    vocabulary.kinds.push_back(static_cast<int32_t>(piece.kind));
    scores.push_back(piece.score);
    has_bytes = has_bytes || piece.kind == data::PieceKind::byte;
    has_spaces = has_spaces || piece.text == "\u2581";
    if (piece.kind == data::PieceKind::unused)
      cannot_represent(format("SentencePiece splits the unused piece {} again, llama.cpp does not", piece.text));
    if (piece.kind != data::PieceKind::user_defined) continue;
    if (traits->dummy_prefix)
      cannot_represent(
          format("llama.cpp adds a space after the user-defined symbol {}, which SentencePiece does not", piece.text));
    if (piece.text.find("\u2581") != piece.text.npos)
      cannot_represent(format("llama.cpp does not find the user-defined symbol {}, since it has spaces", piece.text));
    all.push_back({.text = piece.text, .pass = 2});
  }
  if (!has_bytes)
    cannot_represent("the SentencePiece model has no tokens for bytes (byte_fallback), which llama.cpp requires");
  if (!has_spaces)
    cannot_represent("it has no token for a space; llama.cpp would use the bytes of U+2581 instead of the byte 0x20");
  constexpr float kNever = -1e4f, kAdded = -1000;  // as llama.cpp's own converter
  for (const data::AddedToken& token : added.tokens) {
    vocabulary.tokens.push_back(token.content);
    vocabulary.kinds.push_back(token.special ? kControl : kUserDefined);
    scores.push_back(kAdded);
  }
  for (const std::vector<data::AddedToken>* list : {&added.pieces, &added.tokens})
    for (const data::AddedToken& token : *list) {
      all.push_back(found(token));
      if (!token.special) vocabulary.kinds[static_cast<size_t>(token.id)] = kUserDefined;
      if (!token.special && traits->dummy_prefix && !added.prefixes_again())
        cannot_represent(
            format("llama.cpp adds a space after the added token {}, which this tokenizer does not", token.content));
    }
  require_unreachable(vocabulary);
  require_separate(all);
  scores.resize(static_cast<size_t>(rows), kNever);
  metadata.emplace_back("tokenizer.ggml.scores", std::move(scores));
}

/// Returns the name of a token; its number, if the tokenizer lacks it.
std::string shown(const data::Tokenizer& tokenizer, int32_t id) {
  return id < tokenizer.vocab_size() ? tokenizer.name_of(id) : std::to_string(id);
}

/// Returns the tokens that end generated text: the EOS of the tokenizer's own files, then the token that ends
/// documents.
std::vector<int32_t> ends_of_text(const data::Tokenizer& tokenizer, const data::SpecialTokens& special) {
  std::vector<int32_t> ends = special.eos;
  if (const auto found = special.fields.find("tokenizer_config.json"); found != special.fields.end()) {
    const auto name = parse_json(found->second).value("eos_token", nlohmann::json());
    std::ranges::stable_partition(
        ends, [&](int32_t id) { return id < tokenizer.vocab_size() && tokenizer.name_of(id) == name; });
  }
  if (!ends.empty() && ends.front() == tokenizer.eos()) return ends;
  std::erase(ends, tokenizer.eos());
  ends.insert(ends.begin() + (ends.empty() ? 0 : 1), tokenizer.eos());
  return ends;
}

}  // namespace

void add_tokenizer(const std::optional<data::Tokenizer>& tokenizer, const data::SpecialTokens& special, int64_t rows,
                   GgufMetadata& metadata) {
  if (!tokenizer) {
    metadata.emplace_back("tokenizer.ggml.model", std::string("none"));
    return;
  }
  Vocabulary vocabulary;
  if (tokenizer->file_name() == "tokenizer.json")
    add_bpe(*tokenizer, vocabulary, metadata);
  else
    add_sentencepiece(*tokenizer, rows, vocabulary, metadata);
  for (auto id = static_cast<int64_t>(vocabulary.tokens.size()); id < rows; ++id) {
    vocabulary.tokens.push_back(format("[PAD{}]", id));
    vocabulary.kinds.push_back(kUnused);
  }
  const auto unknown = std::ranges::find(vocabulary.kinds, static_cast<int32_t>(data::PieceKind::unknown));
  metadata.emplace_back("tokenizer.ggml.tokens", std::move(vocabulary.tokens));
  const auto add_id = [&](const char* key, std::optional<int64_t> id) {
    if (id) metadata.emplace_back(key, static_cast<uint32_t>(*id));
  };
  add_id("tokenizer.ggml.bos_token_id", special.bos);
  const std::vector<int32_t> ends = ends_of_text(*tokenizer, special);
  constexpr const char* kEnds[] = {"eos", "eot", "eom"};  // all of them end generated text
  for (size_t i = 0; i < std::min(ends.size(), std::size(kEnds)); ++i)
    add_id(format("tokenizer.ggml.{}_token_id", kEnds[i]).c_str(), ends[i]);
  if (ends.size() > std::size(kEnds)) {
    std::vector<std::string> others;
    for (size_t i = std::size(kEnds); i < ends.size(); ++i) others.push_back(shown(*tokenizer, ends[i]));
    log::warning(
        "GGUF files name at most {} tokens that end generated text, this model has {}; llama.cpp does not stop at {}",
        std::size(kEnds), ends.size(), fmt::join(others, ", "));
  }
  add_id("tokenizer.ggml.padding_token_id", special.pad);
  if (special.unk)
    add_id("tokenizer.ggml.unknown_token_id", special.unk);
  else if (unknown != vocabulary.kinds.end())
    add_id("tokenizer.ggml.unknown_token_id", unknown - vocabulary.kinds.begin());
  metadata.emplace_back("tokenizer.ggml.token_type", std::move(vocabulary.kinds));
  metadata.emplace_back("tokenizer.ggml.add_bos_token", tokenizer->bos() >= 0);
  metadata.emplace_back("tokenizer.ggml.add_eos_token", special.add_eos);
  if (std::string jinja = data::exported_template(
          special, *tokenizer, special.bos ? shown(*tokenizer, *special.bos) : "", shown(*tokenizer, ends.front()));
      !jinja.empty())
    metadata.emplace_back("tokenizer.chat_template", std::move(jinja));
}

}  // namespace trainer::huggingface
