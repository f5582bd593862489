#include "huggingface/gguf_tokenizer.h"

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "data/added_tokens.h"
#include "data/bpe_file.h"
#include "data/model_traits.h"
#include "unit/huggingface/fixture.h"

namespace trainer::huggingface {
namespace {

using nlohmann::json;

TEST(Gguf, TokenizersAreMetadata) {
  json file, vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[data::byte_characters()[byte]] = byte;
  vocab["ab"] = 256;
  file["model"] = {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b"}}};
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  file["added_tokens"] = {{{"id", 257}, {"content", "<|endoftext|>"}, {"special", true}},
                          {{"id", 258}, {"content", "<x>"}, {"special", false}}};
  const data::Tokenizer tokenizer = data::Tokenizer::from_bytes(file.dump(), "x");
  GgufMetadata metadata;
  add_tokenizer(tokenizer, {.eos = {257, 5}, .pad = 3}, 261, metadata);
  const std::map<std::string, GgufValue> keys(metadata.begin(), metadata.end());
  const auto& tokens = std::get<std::vector<std::string>>(keys.at("tokenizer.ggml.tokens"));
  const auto& kinds = std::get<std::vector<int32_t>>(keys.at("tokenizer.ggml.token_type"));
  ASSERT_EQ(tokens.size(), 261u);
  EXPECT_EQ((std::vector<std::string>(tokens.begin() + 256, tokens.end())),
            (std::vector<std::string>{"ab", "<|endoftext|>", "<x>", "[PAD259]", "[PAD260]"}));
  EXPECT_EQ((std::vector<int32_t>(kinds.begin() + 256, kinds.end())), (std::vector<int32_t>{1, 3, 4, 5, 5}));
  EXPECT_EQ(std::get<std::string>(keys.at("tokenizer.ggml.pre")), "gpt-2");
  EXPECT_EQ(std::get<std::vector<std::string>>(keys.at("tokenizer.ggml.merges")), std::vector<std::string>{"a b"});
  EXPECT_EQ(std::get<uint32_t>(keys.at("tokenizer.ggml.eos_token_id")), 257u);
  EXPECT_EQ(std::get<uint32_t>(keys.at("tokenizer.ggml.eot_token_id")), 5u);
  EXPECT_EQ(std::get<uint32_t>(keys.at("tokenizer.ggml.padding_token_id")), 3u);
  EXPECT_FALSE(keys.contains("tokenizer.ggml.bos_token_id"));
  EXPECT_FALSE(std::get<bool>(keys.at("tokenizer.ggml.add_bos_token")));
  file["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "Split"}, {"pattern", {{"Regex", "[0-9]"}}}, {"behavior", "Isolated"}},
                             {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  const data::Tokenizer other = data::Tokenizer::from_bytes(file.dump(), "x");
  expect_error(Code::checkpoint, {"cannot be exported as GGUF", "[0-9]", "Llama 3"},
               [&] { add_tokenizer(other, {}, 261, metadata); });
  const auto refused = [&](const json& changed, const std::vector<std::string>& parts) {
    const data::Tokenizer made = data::Tokenizer::from_bytes(changed.dump(), "x");
    expect_error(Code::checkpoint, parts, [&] { add_tokenizer(made, {}, 270, metadata); });
  };
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  json whole = file;
  whole["model"]["ignore_merges"] = true;
  refused(whole, {"ignore_merges", "gpt-2"});
  json overlapping = file;
  overlapping["added_tokens"].push_back({{"id", 259}, {"content", "x>12"}, {"special", false}});
  refused(overlapping, {"x>12", "<x>", "overlap"});
  const auto with = [&](const char* content, bool special, bool normalized) {
    json changed = file;
    changed["added_tokens"].push_back(
        {{"id", 259}, {"content", content}, {"special", special}, {"normalized", normalized}});
    return changed;
  };
  ASSERT_EQ(file["added_tokens"][1], (json{{"id", 258}, {"content", "<x>"}, {"special", false}}));
  // Tokens of the same length, one that is found first inside the other, and one that a special token hides.
  refused(with("x>1", false, true), {"x>1", "<x>", "overlap"});
  refused(with("x>", false, false), {"prefer x> to <x>"});
  refused(with("<<x>>", true, true), {"prefer <x> to <<x>>"});
  json strips = with("<y>", false, false);
  strips["added_tokens"][2]["rstrip"] = true;
  refused(strips, {"spaces next to <y>"});
  GgufMetadata good;
  for (const json& changed : {with("<y>", false, true), with("<<x>>", true, false), with("12", true, true)})
    add_tokenizer(data::Tokenizer::from_bytes(changed.dump(), "x"), {}, 270, good);
}

TEST(Gguf, NamesTheEosOfTheTokenizerFirst) {
  json file, vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[data::byte_characters()[static_cast<size_t>(byte)]] = byte;
  file["model"] = {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}};
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  for (const char* name : {"<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"})
    file["added_tokens"].push_back(
        {{"id", 256 + static_cast<int>(file["added_tokens"].size())}, {"content", name}, {"special", true}});
  data::SpecialTokens special{.eos = {256, 257, 258}};
  special.fields["tokenizer_config.json"] = json{{"eos_token", "<|eot_id|>"}}.dump();
  const data::Tokenizer tokenizer = data::Tokenizer::from_bytes(file.dump(), "x", special);
  GgufMetadata metadata;
  add_tokenizer(tokenizer, special, 259, metadata);
  const std::map<std::string, GgufValue> keys(metadata.begin(), metadata.end());
  EXPECT_EQ(std::get<uint32_t>(keys.at("tokenizer.ggml.eos_token_id")), 258u);
  EXPECT_EQ(std::get<uint32_t>(keys.at("tokenizer.ggml.eot_token_id")), 256u);
  EXPECT_EQ(std::get<uint32_t>(keys.at("tokenizer.ggml.eom_token_id")), 257u);
  EXPECT_FALSE(keys.contains("tokenizer.ggml.normalizer.nfc"));
}

TEST(Gguf, NamesThreeTokensThatEndTextAndWarnOfOthers) {
  json file, vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[data::byte_characters()[static_cast<size_t>(byte)]] = byte;
  file["model"] = {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}};
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  for (const char* name : {"</s>", "<a>", "<b>", "<c>"})
    file["added_tokens"].push_back(
        {{"id", 256 + static_cast<int>(file["added_tokens"].size())}, {"content", name}, {"special", true}});
  // The last has a row of the embedding, but no token.
  const data::SpecialTokens special{.eos = {257, 258, 259, 300}};
  std::vector<std::string> lines;
  const log::Sink before = log::set_sink([&](log::Level, const std::string& line) { lines.push_back(line); });
  GgufMetadata metadata;
  add_tokenizer(data::Tokenizer::from_bytes(file.dump(), "x", special), special, 301, metadata);
  log::set_sink(before);
  const std::map<std::string, GgufValue> keys(metadata.begin(), metadata.end());
  EXPECT_EQ(std::get<uint32_t>(keys.at("tokenizer.ggml.eos_token_id")), 257u);
  EXPECT_EQ(std::get<uint32_t>(keys.at("tokenizer.ggml.eot_token_id")), 256u);  // ends documents
  EXPECT_EQ(std::get<uint32_t>(keys.at("tokenizer.ggml.eom_token_id")), 258u);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("does not stop at <c>, 300"), std::string::npos) << lines[0];
}

TEST(Gguf, AddedTokensFollowThePiecesOfSentencePiece) {
  TempFolder folder;
  const auto train = [&](const std::string& text) {
    return data::Tokenizer::train({tests::write(folder / "a.txt", text)}, 270).bytes();
  };
  std::string model = train("abcd abcd abce abcde\n abc\n"), spaceless = train("abcdabcdabceabcde\nabcdefg\nghij\n");
  const data::AddedTokens added{
      .tokens = {{.id = 270, .content = "<|im_start|>"}, {.id = 271, .content = "<|im_end|>", .special = true}}};
  GgufMetadata metadata;
  add_tokenizer(data::Tokenizer::from_bytes(data::with_added_tokens(model, added), "x"), {.eos = {271, 2}}, 273,
                metadata);
  const std::map<std::string, GgufValue> keys(metadata.begin(), metadata.end());
  const auto& tokens = std::get<std::vector<std::string>>(keys.at("tokenizer.ggml.tokens"));
  const auto& kinds = std::get<std::vector<int32_t>>(keys.at("tokenizer.ggml.token_type"));
  const auto& scores = std::get<std::vector<float>>(keys.at("tokenizer.ggml.scores"));
  ASSERT_EQ(tokens.size(), 273u);
  ASSERT_EQ(scores.size(), 273u);
  EXPECT_EQ((std::vector<std::string>(tokens.begin() + 270, tokens.end())),
            (std::vector<std::string>{"<|im_start|>", "<|im_end|>", "[PAD272]"}));
  EXPECT_EQ((std::vector<int32_t>(kinds.begin() + 270, kinds.end())), (std::vector<int32_t>{4, 3, 5}));
  EXPECT_EQ(scores[271], -1000);  // as llama.cpp's converter
  EXPECT_EQ(std::get<uint32_t>(keys.at("tokenizer.ggml.eos_token_id")), 271u);
  // llama.cpp would encode a space without a piece as other bytes.
  expect_error(Code::checkpoint, {"cannot be exported as GGUF", "no token for a space"},
               [&] { add_tokenizer(data::Tokenizer::from_bytes(spaceless, "x"), {}, 270, metadata); });
}

/// Returns a piece to be appended to a serialized SentencePiece model.
std::string piece(const std::string& text, data::PieceKind kind) {
  const auto field = [](char tag, const std::string& bytes) {
    return std::string{tag, static_cast<char>(bytes.size())} + bytes;
  };
  return field('\x0a', field('\x0a', text) + std::string("\x15\0\0\x80\xc2\x18", 6) + static_cast<char>(kind));
}

TEST(Gguf, RejectsSentencePieceModelsThatLlamaCppEncodesDifferently) {
  TempFolder folder;
  const std::string model =
      data::Tokenizer::train({tests::write(folder / "a.txt", "abcd abcd abce abcde\n abc\n< / s >\n")}, 275).bytes();
  const std::string prefixed = model + std::string(data::kDummyPrefix);
  using Kind = data::PieceKind;
  const auto size = static_cast<int32_t>(data::read_pieces(model).size());
  const auto refused = [&](const std::string& bytes, const data::AddedTokens& added, const char* part) {
    GgufMetadata metadata;
    const data::Tokenizer made = data::Tokenizer::from_bytes(data::with_added_tokens(bytes, added), "x");
    expect_error(Code::checkpoint, {"cannot be exported as GGUF", part},
                 [&] { add_tokenizer(made, {}, 300, metadata); });
  };
  refused(model + piece("ab!", Kind::unused), {}, "the unused piece ab!");
  refused(model + piece("</", Kind::normal) + piece("s>", Kind::normal), {}, "would join < and s> in text to <s>");
  refused(model + piece("\u2581x", Kind::user_defined), {}, "\u2581x, since it has spaces");
  refused(model + piece("<y>", Kind::user_defined) + piece("y>z", Kind::user_defined), {}, "prefer y>z to <y>");
  refused(model, {.tokens = {{.id = size, .content = "<t>", .rstrip = true}}}, "spaces next to <t>");
  refused(model, {.tokens = {{.id = size, .content = "ea", .special = true}}}, "would join e and a in text to ea");
  refused(model, {.pieces = {{.id = 2, .content = "</s>", .lstrip = true}}}, "spaces next to </s>");
  refused(prefixed, {}, "adds a space after the user-defined symbol");
  refused(prefixed,
          {.normalizer = "null",
           .pre_tokenizer = R"({"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"})"},
          "adds a space before texts that begin with one");
}

}  // namespace
}  // namespace trainer::huggingface
