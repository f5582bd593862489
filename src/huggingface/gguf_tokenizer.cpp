#include "huggingface/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <ranges>

#include "base/error.h"
#include "base/join.h"
#include "base/json.h"
#include "base/log.h"
#include "data/added_tokens.h"
#include "data/bpe_file.h"
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

/// Throws if tokens that are matched in text can overlap there: llama.cpp looks for the longest one first, this
/// program, like the tokenizers library, for the first one in the text.
void require_separate(const data::BpeSpec& spec) {
  const auto text = [&](int32_t id) -> std::string_view { return spec.names[static_cast<size_t>(id)]; };
  for (const int32_t first : spec.literals)
    for (const int32_t second : spec.literals)
      for (size_t common = 1; common < text(first).size() && common < text(second).size(); ++common)
        if (text(second).size() > text(first).size() && text(first).ends_with(text(second).substr(0, common)))
          cannot_represent(
              format("llama.cpp would prefer {} to {} where they overlap in the text", text(second), text(first)));
}

/// Tokens in the order of their ids.
struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> kinds;
};

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
  require_separate(spec);
  vocabulary.tokens = spec.names;
  vocabulary.kinds.assign(spec.names.size(), kNormal);
  for (size_t id = 0; id < spec.pieces.size(); ++id)
    if (spec.pieces[id].empty()) vocabulary.kinds[id] = kControl;
  for (const int32_t id : spec.literals) vocabulary.kinds[static_cast<size_t>(id)] = kUserDefined;
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
  std::vector<float> scores;
  bool has_bytes = false, has_spaces = false;
  for (const data::ModelPiece& piece : data::read_pieces(tokenizer.bytes())) {
    vocabulary.tokens.emplace_back(piece.text);
    vocabulary.kinds.push_back(static_cast<int32_t>(piece.kind));
    scores.push_back(piece.score);
    has_bytes = has_bytes || piece.kind == data::PieceKind::byte;
    has_spaces = has_spaces || piece.text == "\u2581";
    if (piece.kind == data::PieceKind::user_defined && traits->dummy_prefix)
      cannot_represent(
          format("llama.cpp adds a space after the user-defined symbol {}, which SentencePiece does not", piece.text));
  }
  if (!has_bytes)
    cannot_represent("the SentencePiece model has no tokens for bytes (byte_fallback), which llama.cpp requires");
  if (!has_spaces)
    cannot_represent("it has no token for a space; llama.cpp would use the bytes of U+2581 instead of the byte 0x20");
  constexpr float kNever = -1e4f, kAdded = -1000;  // as llama.cpp's own converter
  for (const data::AddedToken& token : data::read_added_tokens(tokenizer.bytes(), "the tokenizer").tokens) {
    vocabulary.tokens.push_back(token.content);
    vocabulary.kinds.push_back(token.special ? kControl : kUserDefined);
    scores.push_back(kAdded);
  }
  scores.resize(static_cast<size_t>(rows), kNever);
  metadata.emplace_back("tokenizer.ggml.scores", std::move(scores));
}

/// Returns the tokens that end generated text. The first is the EOS of the tokenizer's own files.
std::vector<int32_t> ends_of_text(const data::Tokenizer& tokenizer, const data::SpecialTokens& special) {
  std::vector<int32_t> ends = special.eos;
  if (std::ranges::count(ends, tokenizer.eos()) == 0) ends.push_back(tokenizer.eos());
  if (const auto found = special.fields.find("tokenizer_config.json"); found != special.fields.end()) {
    const auto name = parse_json(found->second).value("eos_token", nlohmann::json());
    std::ranges::stable_partition(
        ends, [&](int32_t id) { return id < tokenizer.vocab_size() && tokenizer.name_of(id) == name; });
  }
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
  if (ends.size() > std::size(kEnds))
    log::warning(
        "GGUF files name at most {} tokens that end generated text, this model has {}; llama.cpp does not stop "
        "at {}",
        std::size(kEnds), ends.size(), tokenizer->name_of(ends.back()));
  add_id("tokenizer.ggml.padding_token_id", special.pad);
  if (special.unk)
    add_id("tokenizer.ggml.unknown_token_id", special.unk);
  else if (unknown != vocabulary.kinds.end())
    add_id("tokenizer.ggml.unknown_token_id", unknown - vocabulary.kinds.begin());
  metadata.emplace_back("tokenizer.ggml.token_type", std::move(vocabulary.kinds));
  metadata.emplace_back("tokenizer.ggml.add_bos_token", tokenizer->bos() >= 0);
  metadata.emplace_back("tokenizer.ggml.add_eos_token", special.add_eos);
}

}  // namespace trainer::huggingface
