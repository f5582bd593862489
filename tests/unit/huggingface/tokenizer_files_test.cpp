// The tokenizer's files of an exported model.
#include "huggingface/tokenizer_files.h"

#include <nlohmann/json.hpp>
#include <random>

#include "data/post_processor.h"
#include "unit/data/small_bpe.h"
#include "unit/huggingface/fixture.h"

namespace trainer::huggingface {
namespace {

using nlohmann::json;

/// Returns a tokenizer.json with the special tokens <|end|>, <|begin|> and <|turn|>, whose ids follow each other.
json tokenizer_json() {
  std::mt19937_64 random(2);
  json file = data::testing::small_json(random, 4);
  const auto end = file["added_tokens"][0]["id"].get<int32_t>();
  file["added_tokens"] = json::array();
  for (const char* name : {"<|end|>", "<|begin|>", "<|turn|>"})
    file["added_tokens"].push_back(
        {{"id", end + static_cast<int32_t>(file["added_tokens"].size())}, {"content", name}, {"special", true}});
  return file;
}

std::map<std::string, std::string> exported_files(const data::Tokenizer& tokenizer) {
  std::map<std::string, std::string> files;
  for (NamedFile& file : tokenizer_files(tokenizer, tokenizer.special(), 10)) files[file.name] = std::move(file.bytes);
  return files;
}

data::AddedEnds added_by(const std::string& tokenizer_json) {
  return data::ends_of(json::parse(tokenizer_json)["post_processor"]);
}

TEST(TokenizerFiles, HaveTheNamesOfTheImportedFiles) {
  TempFolder folder;
  write(folder / "tokenizer.json", tokenizer_json().dump());
  write(folder / "config.json", json{{"model_type", "llama"}, {"eos_token_id", {258, 259}}}.dump());
  const json none{{"bos_token", nullptr}, {"eos_token", nullptr}, {"unk_token", nullptr}, {"pad_token", nullptr}};
  for (const json& names : {json{{"bos_token", "<|begin|>"}, {"eos_token", "<|turn|>"}},
                            json{{"bos_token", nullptr}, {"eos_token", "<|end|>"}, {"pad_token", "<|turn|>"}},
                            json{{"eos_token", "<|end|>"}, {"unk_token", "<|end|>"}}}) {
    write(folder / "tokenizer_config.json", names.dump());
    const data::Tokenizer tokenizer = data::Tokenizer::load(folder.path().string());
    const json config = json::parse(exported_files(tokenizer).at("tokenizer_config.json"));
    json expected = none;
    expected.update(names);
    for (const auto& [field, name] : expected.items()) EXPECT_EQ(config.at(field), name) << field;
  }
}

// A run's data.bos may differ from what the tokenizer's own file adds to texts.
TEST(TokenizerFiles, AddTheTokensThatTheRunAdds) {
  const auto step = [](const char* name) { return json{{"SpecialToken", {{"id", name}, {"type_id", 0}}}}; };
  const json text{{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
      byte_level{{"type", "ByteLevel"}, {"trim_offsets", true}};
  const auto first = tokenizer_json()["added_tokens"][0]["id"].get<int32_t>();
  const json tokens{{"<|end|>", {{"id", "<|end|>"}, {"ids", {first}}, {"tokens", {"<|end|>"}}}},
                    {"<|begin|>", {{"id", "<|begin|>"}, {"ids", {first + 1}}, {"tokens", {"<|begin|>"}}}},
                    {"<|turn|>", {{"id", "<|turn|>"}, {"ids", {first + 2}}, {"tokens", {"<|turn|>"}}}}};
  const auto processor = [&](const std::vector<json>& single) {
    return json{{"type", "TemplateProcessing"}, {"single", single}, {"pair", single}, {"special_tokens", tokens}};
  };
  const json begins = processor({step("<|begin|>"), text}),
             both = processor({step("<|begin|>"), text, step("<|end|>")}),
             turns = processor({step("<|begin|>"), text, step("<|turn|>")}),
             roberta{{"type", "RobertaProcessing"}, {"sep", {"<|end|>", first}}, {"cls", {"<|begin|>", first + 1}}};
  struct Case {
    json post_processor;
    bool begins;      // with <|begin|>
    const char* end;  // empty: none
  };
  for (const auto& [post_processor, adds_bos, end] :
       std::vector<Case>{{nullptr, false, ""},
                         {byte_level, false, ""},
                         {begins, true, ""},
                         {both, true, "<|end|>"},
                         {turns, true, "<|turn|>"},  // unlike documents
                         {roberta, true, "<|end|>"},
                         {{{"type", "Sequence"}, {"processors", {byte_level, begins}}}, true, ""}}) {
    TempFolder folder;
    json file = tokenizer_json();
    file["post_processor"] = post_processor;
    write(folder / "tokenizer.json", file.dump());
    write(folder / "tokenizer_config.json", json{{"bos_token", "<|begin|>"}, {"eos_token", "<|end|>"}}.dump());
    data::Tokenizer tokenizer = data::Tokenizer::load(folder.path().string());
    for (const config::Bos choice : {config::Bos::automatic, config::Bos::on, config::Bos::off}) {
      tokenizer.use_bos(choice, "x");
      const bool chosen = choice == config::Bos::automatic ? adds_bos : choice == config::Bos::on;
      const std::string shown = post_processor.dump() + (chosen ? " with BOS" : " without");
      const auto files = exported_files(tokenizer);
      const std::string& written = files.at("tokenizer.json");
      EXPECT_EQ(added_by(written).before.name, chosen ? "<|begin|>" : "") << shown;
      EXPECT_EQ(added_by(written).after.name, end) << shown;
      EXPECT_EQ(added_by(written).obstacle, "") << shown;
      EXPECT_EQ(json::parse(files.at("tokenizer_config.json"))["add_bos_token"], chosen) << shown;
      if (chosen == adds_bos) {
        EXPECT_EQ(written, tokenizer.bytes()) << shown;
      }
      json rest = json::parse(written);
      rest["post_processor"] = post_processor;
      EXPECT_EQ(rest, json::parse(tokenizer.bytes())) << "everything else stays";
      // An imported export does what the run did.
      TempFolder again;
      for (const auto& [name, bytes] : files) write(again / name, bytes);
      data::Tokenizer back = data::Tokenizer::load(again.path().string());
      back.use_bos(config::Bos::automatic, "x");
      EXPECT_EQ(back.bos(), tokenizer.bos()) << shown;
      EXPECT_EQ(back.eos(), tokenizer.eos()) << shown;
    }
  }
}

TEST(TokenizerFiles, AreReadFromTokenizerJsonNextToAFileOfRanks) {
  TempFolder folder;
  write(folder / "tokenizer.json", tokenizer_json().dump());
  write(folder / "tokenizer_config.json", json{{"eos_token", "<|end|>"}}.dump());
  write(folder / "tokenizer.model", "IQ== 0\nIg== 1\nIw== 2\n");  // as Llama 3's original files have it
  EXPECT_EQ(find_tokenizer(folder.path())->file_name(), "tokenizer.json");
  EXPECT_EQ(data::Tokenizer::load(folder.path().string()).file_name(), "tokenizer.json");
  fs::remove(folder / "tokenizer.json");
  expect_error(Code::data, {"tokenizer.model: 3 ranks", "tokenizer.json"}, [&] { find_tokenizer(folder.path()); });
}

}  // namespace
}  // namespace trainer::huggingface
