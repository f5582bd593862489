// BOS, EOS and other special tokens, from tokenizer.json and the files next to it.
#include "data/special_tokens.h"

#include <gtest/gtest.h>

#include "data/tokenizer.h"
#include "unit/data/fixtures.h"
#include "unit/data/small_bpe.h"

namespace trainer::data {
namespace {

using namespace testing;
using nlohmann::json;

TEST(SpecialTokens, BeginTextsAsTheFilesSay) {
  std::mt19937_64 random(2);
  const json plain = small_json(random, 4);
  const auto usual = plain["added_tokens"][0]["id"].get<int32_t>() + 1, odd = usual + 1;
  const auto begins_with = [](const char* name) {
    return json{{"type", "TemplateProcessing"},
                {"single", {{{"SpecialToken", {{"id", name}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}}}}}}};
  };
  const json byte_level{{"type", "ByteLevel"}, {"trim_offsets", true}};
  const json ends{{"type", "TemplateProcessing"},
                  {"single", {{{"Sequence", {{"id", "A"}}}}, {{"SpecialToken", {{"id", "<|odd|>"}}}}}}};
  const json sequence{{"type", "Sequence"}, {"processors", {byte_level, begins_with("<|odd|>")}}};
  struct Case {
    json post_processor, settings;  // in tokenizer.json, and tokenizer_config.json (null: no such file)
    int32_t automatic, on;
  };
  const Case cases[] = {
      {nullptr, nullptr, -1, usual},
      {byte_level, nullptr, -1, usual},
      {ends, nullptr, -1, usual},
      {{{"type", "Sequence"}, {"processors", 3}}, nullptr, -1, usual},
      {begins_with("<s>"), nullptr, usual, usual},
      {begins_with("<|odd|>"), nullptr, odd, odd},
      {begins_with("<|none|>"), nullptr, -1, usual},
      {sequence, nullptr, odd, odd},
      {sequence, {{"add_bos_token", false}}, -1, odd},
      {sequence, {{"add_eos_token", true}}, -1, odd},  // a missing add_bos_token is false
      {sequence, {{"model_max_length", 9}}, odd, odd},
      {sequence, {{"bos_token", nullptr}}, -1, -1},
      {nullptr, {{"bos_token", "<|odd|>"}, {"add_bos_token", true}}, odd, odd},
      {nullptr, {{"bos_token", {{"content", "<|odd|>"}}}, {"add_bos_token", true}}, odd, odd},
      {nullptr, {{"bos_token", "<|none|>"}, {"add_bos_token", true}}, -1, -1},
  };
  for (const auto& [post_processor, settings, automatic, on] : cases) {
    TempFolder folder;
    json file = plain;
    file["added_tokens"].push_back({{"id", usual}, {"content", "<s>"}, {"special", true}});
    file["added_tokens"].push_back({{"id", odd}, {"content", "<|odd|>"}, {"special", true}});
    file["post_processor"] = post_processor;
    const std::string path = write(folder / "tokenizer.json", file.dump());
    if (!settings.is_null()) write(folder / "tokenizer_config.json", settings.dump());
    for (const std::string& name : {path, folder.path().string()}) {
      Tokenizer tokenizer = Tokenizer::load(name);
      const std::string shown = post_processor.dump() + " " + settings.dump();
      EXPECT_EQ(tokenizer.bos(), -1) << "before use_bos(): " << shown;
      tokenizer.use_bos(config::Bos::automatic, "x");
      EXPECT_EQ(tokenizer.bos(), automatic) << shown;
      if (on < 0) {
        expect_error(Code::config, {"data.bos", "\"on\"", name, "\"off\""},
                     [&] { tokenizer.use_bos(config::Bos::on, name); });
        continue;
      }
      tokenizer.use_bos(config::Bos::on, "x");
      EXPECT_EQ(tokenizer.bos(), on) << shown;
      tokenizer.use_bos(config::Bos::off, "x");
      EXPECT_EQ(tokenizer.bos(), -1) << shown;
    }
  }
  TempFolder folder;
  write(folder / "tokenizer.json", plain.dump());
  write(folder / "tokenizer_config.json", "[1]");
  expect_error(Code::data, {"tokenizer_config.json: not a JSON object"},
               [&] { Tokenizer::load(folder.path().string()); });
}

TEST(SpecialTokens, AreReadFromTheFirstFileThatNamesThem) {
  std::mt19937_64 random(2);
  json file = small_json(random, 4);
  const auto end = file["added_tokens"][0]["id"].get<int32_t>();
  file["added_tokens"].push_back({{"id", end + 1}, {"content", "<turn>"}, {"special", true}});
  file["added_tokens"].push_back({{"id", end + 2}, {"content", "<pad>"}, {"special", true}});
  TempFolder folder;
  write(folder / "tokenizer.json", file.dump());
  const auto load = [&] { return Tokenizer::load(folder.path().string()); };
  EXPECT_TRUE(load().special().empty());
  EXPECT_EQ(load().stops(), std::vector<int32_t>{end});
  write(folder / "tokenizer_config.json",
        json{{"eos_token", "<turn>"}, {"pad_token", {{"content", "<pad>"}}}, {"bos_token", nullptr}}.dump());
  SpecialTokens expected{.eos = {end + 1}, .pad = end + 2};
  EXPECT_EQ(load().special(), expected);
  EXPECT_EQ(load().eos(), end) << "ends documents";
  write(folder / "config.json",
        json{{"eos_token_id", 7}, {"pad_token_id", 8}, {"bos_token_id", 9}, {"unk_token_id", -1}}.dump());
  expected.eos = {7};
  EXPECT_EQ(load().special(), expected) << "a bos_token of null is no BOS";
  write(folder / "generation_config.json", json{{"eos_token_id", {5, 7, end}}}.dump());
  write(folder / "tokenizer_config.json", json{{"add_eos_token", true}}.dump());
  EXPECT_EQ(load().special(), (SpecialTokens{.eos = {5, 7, end}, .bos = 9, .pad = 8, .add_eos = true}));
  EXPECT_EQ(load().stops(), (std::vector<int32_t>{end, 5, 7}));
  for (const json& value : {json("x"), json(3.5), json({1, "2"}), json(int64_t{1} << 40)}) {
    write(folder / "generation_config.json", json{{"eos_token_id", value}}.dump());
    expect_error(Code::data, {"generation_config.json: eos_token_id: ", "expected the id of a token"}, load);
  }
  write(folder / "generation_config.json", "{\"eos_token_id\": 5");
  expect_error(Code::data, {"generation_config.json: not a JSON object"}, load);
}

TEST(SpecialTokens, AreInTheVocabularyOfTheModel) {
  TempFolder folder;
  const auto read = [&](const json& config, const json& generation = json::object()) {
    write(folder / "config.json", config.dump());
    write(folder / "generation_config.json", generation.dump());
    return read_special_tokens(folder.path(), [](const std::string&) { return std::nullopt; });
  };
  const json llama{{"model_type", "llama"}, {"vocab_size", 30}};
  const auto with = [](json config, const char* field, const json& value) {
    config[field] = value;
    return config;
  };
  for (const char* field : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    for (const json& id : {json(30), json(-2), json({29, 30}), json(50256), json(int64_t{1} << 33)}) {
      const std::string shown = (id.is_array() ? id[1] : id).dump();
      const std::string reason =
          std::string(field) + ": " + shown + ", expected the id of a token, which is between 0 and 29";
      expect_error(Code::data, {"/config.json: " + reason}, [&] { read(with(llama, field, id)); });
      expect_error(Code::data, {"/generation_config.json: " + reason},
                   [&] { read(llama, with(json::object(), field, id)); });
    }
    EXPECT_TRUE(read(with(llama, field, -1)).empty()) << "none, in older files";
    EXPECT_TRUE(read(with(llama, field, nullptr)).empty());
  }
  EXPECT_EQ(read(with(llama, "eos_token_id", {0, 29})), (SpecialTokens{.eos = {0, 29}}));
  EXPECT_EQ(read(with(llama, "pad_token_id", 29)).pad, 29);
  // Defaults of transformers' classes are written whatever the vocabulary is.
  const json gpt2{{"model_type", "gpt2"}, {"vocab_size", 30}, {"bos_token_id", 50256}, {"eos_token_id", 50256}};
  EXPECT_TRUE(read(gpt2, {{"eos_token_id", {50256, -1}}}).empty());
  EXPECT_EQ(read(with(gpt2, "vocab_size", 50257)), (SpecialTokens{.eos = {50256}, .bos = 50256}));
  expect_error(Code::data, {"config.json: eos_token_id: 50257, "}, [&] { read(with(gpt2, "eos_token_id", 50257)); });
  const json smollm{{"model_type", "smollm3"}, {"vocab_size", 30}, {"bos_token_id", 128000}, {"eos_token_id", 128001}};
  EXPECT_TRUE(read(smollm).empty());
}

TEST(SpecialTokens, EndDocumentsWithEosTokenIfNoTokenHasAUsualName) {
  std::mt19937_64 random(2);
  json file = small_json(random, 4);
  const auto id = file["added_tokens"][0]["id"].get<int32_t>();
  file["added_tokens"][0]["content"] = "<one>";
  file["added_tokens"].push_back({{"id", id + 1}, {"content", "<two>"}, {"special", true}});
  TempFolder folder;
  write(folder / "tokenizer.json", file.dump());
  const auto load = [&] { return Tokenizer::load(folder.path().string()); };
  expect_error(Code::data, {"tokenizer.json: added_tokens: no end-of-text token", "eos_token"}, load);
  expect_error(Code::data, {"x: added_tokens: no end-of-text token"}, [&] { Tokenizer::from_bytes(file.dump(), "x"); });
  write(folder / "tokenizer_config.json", json{{"eos_token", "<two>"}}.dump());
  EXPECT_EQ(load().eos(), id + 1);
  EXPECT_EQ(Tokenizer::from_bytes(file.dump(), "x", id).eos(), id);
}

}  // namespace
}  // namespace trainer::data
