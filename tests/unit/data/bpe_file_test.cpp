#include "data/bpe_file.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "data/nfc.h"
#include "data/split_pattern.h"
#include "data/tokenizer.h"
#include "unit/data/fixtures.h"
#include "unit/data/small_bpe.h"

namespace trainer::data {
namespace {

using namespace testing;
namespace fs = std::filesystem;
using nlohmann::json;

TEST(BpeFile, IsRejectedIfTheFileIsWrong) {
  std::mt19937_64 random(4);
  const json good = small_json(random, 6);
  const auto refused = [](const std::string& text, const std::string& part) {
    expect_error(Code::data, {"dir/tokenizer.json: ", part},
                 [&] { Tokenizer::from_bytes(text, "dir/tokenizer.json"); });
  };
  Tokenizer::from_bytes(good.dump(), "good");
  struct Case {
    const char* pointer;
    json value;
    const char* part;
  };
  refused(good.dump().substr(0, good.dump().size() / 2), "model: missing");
  refused("{" + std::string(100'000, '['), "");
  for (const auto& [pointer, value, part] : std::vector<Case>{
           {"/model", 3, "model: missing"},
           {"/model/type", "Unigram", "model.type: \"Unigram\""},
           {"/model/byte_fallback", true, "model.byte_fallback"},
           {"/model/byte_fallback", "no", "byte_fallback: \"no\", expected true or false"},
           {"/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix: \"</w>\""},
           {"/normalizer", {{"type", "NFKC"}}, "normalizer: \"NFKC\" is not supported"},
           {"/pre_tokenizer", nullptr, "pre_tokenizer: null"},
           {"/pre_tokenizer/type", "Metaspace", "pre_tokenizer: \"Metaspace\""},
           {"/pre_tokenizer/add_prefix_space", true, "add_prefix_space: true"},
           {"/pre_tokenizer",
            {{"type", "Sequence"},
             {"pretokenizers",
              {{{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}},
               {{"type", "ByteLevel"}, {"add_prefix_space", false}}}}},
            "pattern (a: missing closing parenthesis"},
           {"/pre_tokenizer",
            {{"type", "Sequence"},
             {"pretokenizers", json::array({json{{"type", "Split"}, {"pattern", {{"String", " "}}}}})}},
            "Split with a regular expression"},
           {"/pre_tokenizer",
            {{"type", "Sequence"},
             {"pretokenizers",
              json::array({json{{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Removed"}}})}},
            "or Removed with invert"},
           {"/model/vocab", json::object(), "model.vocab: missing"},
           {"/model/vocab/a", 300000000, "model.vocab: a: 300000000 is not a token id"},
           {"/model/vocab/a", -1, "model.vocab: a: -1 is not a token id"},
           {"/model/vocab/a", 98, "id 98 occurs twice"},
           {"/model/vocab/a", 5000, "id 5000 is too high: some ids below it have no token"},
           {"/model/merges", 7, "model.merges: missing"},
           {"/model/merges/0", "a b c", "model.merges[0]: \"a b c\" is not a pair"},
           {"/model/merges/0", "a z", "model.merges[0]: az is not a token"},
           {"/model/merges/0", {"a"}, "is not a pair"},
           {"/added_tokens", json::array(), "no end-of-text token"},
           {"/added_tokens/0/content", 5, "has no content"},
           {"/added_tokens/0/id", 97, "id 97 is also the id of a"},
           {"/added_tokens/0/special", 1, "special: 1"},
       }) {
    json file = good;
    file[json::json_pointer(pointer)] = value;
    refused(file.dump(), part);
  }
  json missing = good;
  missing["model"]["vocab"].erase("z");
  refused(missing.dump(), "</s>: id 262, but the tokenizers library gives it id 261");
  missing["model"]["vocab"]["日"] = 122;
  refused(missing.dump(), "model.vocab: 日: not written in");
}

TEST(BpeFile, IsRejectedIfTheOlderFilesAreWrong) {
  const auto merges = [](const char* text, const char* part) {
    expect_error(Code::data, {"merges.txt: ", part}, [&] { json_of_gpt2(std::nullopt, text, "v", "merges.txt"); });
  };
  json_of_gpt2(std::nullopt, "#version: 0.2\na b\n\n", "v", "merges.txt");
  merges("#version: 0.2\na b\nab\n", "line 3: ");
  merges("a  b\n", "line 1");
  merges("a \xff\n", "line 1");
  for (const auto& [text, part] : {std::pair{"[1]", "not a JSON object"},
                                   {"{\"a\":\"b\"}", "a: "},
                                   {"{\"a\":0}", "no end-of-text token such as <|endoftext|>"}})
    expect_error(Code::data, {"v.json: ", part}, [&] { json_of_gpt2(text, "a b\n", "v.json", "m"); });
  for (const auto& [text, part] : {std::pair{"YQ== 0\n", "1 ranks"},
                                   {"YQ== 0\nYQ== 1\n", "line 2: the token occurs twice"},
                                   {"YQ== 0\nY!== 1\n", "line 2: expected a token in base64"},
                                   {"YQ== x\n", "line 1"}})
    expect_error(Code::data, {"r: ", part}, [&] { json_of_ranks(text, "r"); });
}

TEST(BpeFile, HasTheSpecialTokensOfAnOlderVocabulary) {
  const auto special = [](std::vector<std::string> names, const char* merges, const json& settings) {
    TempFolder folder;
    write(folder / "tokenizer_config.json", settings.dump());
    json vocab;
    for (size_t id = 0; id < names.size(); ++id) vocab[names[id]] = id;
    std::vector<std::string> found;
    const auto file = json::parse(json_of_gpt2(vocab.dump(), merges, "v", "m", folder.path()));
    for (const auto& token : file["added_tokens"]) found.push_back(token["content"]);
    return found;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(special({"a", "<s>", "</s>"}, "", json::object()), (Names{"<s>", "</s>"})) << "usual names";
  EXPECT_EQ(special({"a", "<s>", "</s>", "<|endoftext|>"}, "", json::object()), Names{"<|endoftext|>"});
  EXPECT_EQ(special({"a", "<end>", "</s>"}, "", {{"eos_token", "<end>"}, {"pad_token", "<none>"}}), Names{"<end>"})
      << "tokenizer_config.json names it";
  EXPECT_EQ(special({"<", "/s>", "<s>", "</s>"}, "< /s>", json::object()), Names{"<s>"})
      << "merges produce the other from text";
}

// As GPT2Tokenizer and Qwen2Tokenizer of transformers 5.24.
TEST(BpeFile, FollowsTheSettingsOfOlderFiles) {
  TempFolder folder;
  json vocab;
  for (size_t byte = 0; byte < 256; ++byte) vocab[byte_characters()[byte]] = byte;
  write(folder / "vocab.json", vocab.dump());
  write(folder / "merges.txt", "#version: 0.2\n");
  const auto load = [&](const char* name, const json& more) {
    json settings{{"tokenizer_class", name}, {"eos_token", "<|endoftext|>"}};
    settings.update(more);
    write(folder / "tokenizer_config.json", settings.dump());
    return Tokenizer::load(folder.path().string());
  };
  const json decoder{{"added_tokens_decoder",
                      {{"256", {{"content", "<|endoftext|>"}, {"special", true}}},
                       {"257", {{"content", "<t>"}, {"special", false}, {"normalized", false}}}}}};
  const Tokenizer gpt2 = load("GPT2Tokenizer", decoder);
  EXPECT_EQ(gpt2.eos(), 256);
  EXPECT_EQ(gpt2.encode("<t><|endoftext|>").size(), 14u);
  EXPECT_EQ(gpt2.encode("a<t>"), (std::vector<int32_t>{'a', 257}));
  EXPECT_EQ(json::parse(gpt2.bytes())["pre_tokenizer"]["type"], "ByteLevel");
  if (has_nfc()) {
    const json qwen2 = json::parse(load("Qwen2TokenizerFast", decoder).bytes());
    EXPECT_EQ(qwen2["normalizer"]["type"], "NFC");
    EXPECT_EQ(qwen2["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"], kQwen2Pattern);
  }
  const auto refused = [&](const char* name, const json& more, const std::vector<std::string>& parts) {
    expect_error(Code::data, parts, [&] { load(name, more); });
  };
  for (const char* name : {"RobertaTokenizer", "CodeGenTokenizer", "PreTrainedTokenizerFast"})
    refused(name, decoder, {"tokenizer_config.json: tokenizer_class: ", "save_pretrained"});
  json prefix = decoder;
  prefix["add_prefix_space"] = true;
  refused("GPT2Tokenizer", prefix, {"tokenizer_config.json: add_prefix_space: true is not supported"});
  refused("GPT2Tokenizer", json::object(), {"vocab.json: no end-of-text token"});
  write(folder / "added_tokens.json", json{{"<|endoftext|>", 256}, {"<t>", 257}}.dump());
  EXPECT_EQ(load("GPT2Tokenizer", json::object()).encode("a<t>"), (std::vector<int32_t>{'a', 257}));
  write(folder / "added_tokens.json", json{{"<|endoftext|>", 256}, {"<t>", 258}}.dump());
  refused("GPT2Tokenizer", json::object(), {"added_tokens.json: <t>: id 258, but id 257 has no token"});
  // The same setting next to a tokenizer.json; the general class ignores it.
  write(folder / "tokenizer.json", gpt2.bytes());
  fs::remove(folder / "added_tokens.json");
  refused("GPT2Tokenizer", prefix, {"tokenizer_config.json: add_prefix_space: true is not supported"});
  EXPECT_EQ(load("PreTrainedTokenizerFast", prefix).bytes(), gpt2.bytes());
}

}  // namespace
}  // namespace trainer::data
