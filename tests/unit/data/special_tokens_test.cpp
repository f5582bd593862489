// BOS, EOS and other special tokens, from tokenizer.json and the files next to it.
#include "data/special_tokens.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "data/tokenizer.h"
#include "unit/data/fixtures.h"
#include "unit/data/small_bpe.h"

namespace trainer::data {
namespace {

using namespace testing;
using nlohmann::json;

// Expected values are those of transformers 5.24: what AutoTokenizer adds to a text.
TEST(SpecialTokens, BeginTextsAsTheFilesSay) {
  std::mt19937_64 random(2);
  const json plain = small_json(random, 4);
  const auto usual = plain["added_tokens"][0]["id"].get<int32_t>() + 1, odd = usual + 1;
  const json tokens{{"<s>", {{"id", "<s>"}, {"ids", {usual}}}}, {"<|odd|>", {{"id", "<|odd|>"}, {"ids", {odd}}}}};
  const auto begins_with = [&](const char* name) {
    return json{{"type", "TemplateProcessing"},
                {"single", {{{"SpecialToken", {{"id", name}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}}}}}},
                {"special_tokens", tokens}};
  };
  const auto pair_of = [&](const char* type) {
    return json{{"type", type}, {"sep", {"</s>", usual - 1}}, {"cls", {"<|odd|>", odd}}};
  };
  const json byte_level{{"type", "ByteLevel"}, {"trim_offsets", true}};
  const json ends{{"type", "TemplateProcessing"},
                  {"single", {{{"Sequence", {{"id", "A"}}}}, {{"SpecialToken", {{"id", "<|odd|>"}}}}}},
                  {"special_tokens", tokens}};
  const json sequence{{"type", "Sequence"}, {"processors", {byte_level, begins_with("<|odd|>")}}};
  struct Case {
    json post_processor, settings;  // in tokenizer.json, and tokenizer_config.json (null: no such file)
    int32_t automatic, on;
    bool add_eos = false;
  };
  const Case cases[] = {
      {nullptr, nullptr, -1, usual},
      {byte_level, nullptr, -1, usual},
      {ends, nullptr, -1, usual, true},
      {begins_with("<s>"), nullptr, usual, usual},
      {begins_with("<|odd|>"), nullptr, odd, odd},
      {pair_of("RobertaProcessing"), nullptr, odd, odd, true},
      {pair_of("BertProcessing"), {{"add_bos_token", false}}, odd, odd, true},
      {sequence, nullptr, odd, odd},
      {sequence, {{"add_bos_token", false}}, odd, odd},  // the post-processor decides
      {sequence, {{"add_bos_token", nullptr}}, odd, odd},
      {sequence, {{"add_eos_token", true}}, odd, odd},
      {sequence, {{"add_eos_token", false}}, odd, odd},
      {sequence, {{"model_max_length", 9}}, odd, odd},
      {sequence, {{"bos_token", nullptr}}, odd, odd},
      {byte_level, {{"bos_token", nullptr}}, -1, -1},
      {nullptr, {{"bos_token", "<|odd|>"}, {"add_bos_token", true}}, -1, odd},
      {nullptr, {{"bos_token", {{"content", "<|odd|>"}}}, {"add_bos_token", true}}, -1, odd},
      {nullptr, {{"bos_token", "<|none|>"}, {"add_bos_token", true}}, -1, -1},
  };
  for (const auto& [post_processor, settings, automatic, on, add_eos] : cases) {
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
      EXPECT_EQ(tokenizer.special().add_eos, add_eos) << shown;
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

// As in the tokenizers library 0.23, tokens are those of the ids in the template, whatever else they are.
TEST(SpecialTokens, BeginTextsWithAnyTokenOfThePostProcessor) {
  std::mt19937_64 random(2);
  json file = small_json(random, 4);
  const auto end = file["added_tokens"][0]["id"].get<int32_t>();
  const int32_t text = end + 1, other = end + 2;
  file["added_tokens"].push_back({{"id", text}, {"content", "<text>"}, {"special", false}});
  file["added_tokens"].push_back({{"id", other}, {"content", "<other>"}, {"special", true}});
  const auto step = [](const char* name) { return json{{"SpecialToken", {{"id", name}, {"type_id", 0}}}}; };
  const json place{{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const auto processor = [&](const json& single, const json& ids) {
    json tokens = json::object();
    for (const auto& [name, list] : ids.items()) tokens[name] = {{"id", name}, {"ids", list}, {"tokens", {name}}};
    return json{{"type", "TemplateProcessing"}, {"single", single}, {"pair", single}, {"special_tokens", tokens}};
  };
  const auto load = [&](const json& post_processor) {
    file["post_processor"] = post_processor;
    return Tokenizer::from_bytes(file.dump(), "x");
  };
  const json ids{{"<text>", {text}}, {"<other>", {other}}, {"</s>", {end}}};
  struct Case {
    json post_processor;
    int32_t bos;
  };
  for (const auto& [post_processor, bos] :
       std::vector<Case>{{processor({step("<text>"), place}, ids), text},  // not special
                         {processor({step("a"), place}, {{"a", {'a'}}}), 'a'},
                         {processor({step("<text>"), place}, {{"<text>", {other}}}), other},
                         {{{"type", "RobertaProcessing"}, {"sep", {"</s>", end}}, {"cls", {"a", 'a'}}}, 'a'}}) {
    Tokenizer tokenizer = load(post_processor);
    tokenizer.use_bos(config::Bos::automatic, "x");
    EXPECT_EQ(tokenizer.bos(), bos) << post_processor;
  }
  const json both = processor({step("<text>"), step("<other>"), place}, ids);
  for (const auto& [post_processor, reason] : std::vector<std::pair<json, const char*>>{
           {both, "several tokens before texts: <text> <other>"},
           {processor({step("<text>"), place}, {{"<text>", {text, other}}}), "several tokens before texts"},
           {processor({place, step("<text>"), step("<other>")}, ids), "before or after texts"},
           {processor({place, place}, ids), "before or after texts"},
           {processor({step("<text>"), place}, json::object()), "before or after texts"},
           {{{"type", "Other"}}, "Other does not add"},
           {{{"type", "Sequence"},
             {"processors", {processor({step("<text>"), place}, ids), processor({step("<other>"), place}, ids)}}},
            "in several steps"}}) {
    Tokenizer tokenizer = load(post_processor);
    expect_error(Code::config, {"data.bos: \"auto\"", "post_processor", reason, "\"off\""},
                 [&] { tokenizer.use_bos(config::Bos::automatic, "x"); });
    tokenizer.use_bos(config::Bos::off, "x");
    EXPECT_EQ(tokenizer.bos(), -1);
  }
  expect_error(Code::data, {"x: post_processor: <text>: id 9999 has no token"}, [&] {
    load(processor({step("<text>"), place}, {{"<text>", {9999}}}));
  });
}

// Without a tokenizer.json, transformers reads whether tokens are added from tokenizer_config.json.
TEST(SpecialTokens, BeginTextsAsTheSettingsSayWithoutTokenizerJson) {
  TempFolder folder;
  std::string vocab = "{";
  for (int byte = 0; byte < 256; ++byte)
    vocab += json(byte_characters()[static_cast<size_t>(byte)]).dump() + ":" + std::to_string(byte) + ",";
  write(folder / "vocab.json", vocab + "\"<s>\":256,\"</s>\":257}");
  write(folder / "merges.txt", "#version: 0.2\n");
  for (const auto& [settings, bos, add_eos] :
       std::vector<std::tuple<json, int32_t, bool>>{{json::object(), -1, false},
                                                    {{{"add_bos_token", true}}, 256, false},
                                                    {{{"add_bos_token", nullptr}}, -1, false},
                                                    {{{"add_bos_token", false}, {"add_eos_token", true}}, -1, true}}) {
    json file{{"bos_token", "<s>"}, {"eos_token", "</s>"}};
    file.update(settings);
    write(folder / "tokenizer_config.json", file.dump());
    Tokenizer tokenizer = Tokenizer::load(folder.path().string());
    tokenizer.use_bos(config::Bos::automatic, "x");
    EXPECT_EQ(tokenizer.bos(), bos) << settings;
    EXPECT_EQ(tokenizer.special().add_eos, add_eos) << settings;
    EXPECT_EQ(tokenizer.eos(), 257);
    EXPECT_EQ(tokenizer.encode("</s>").size(), 4u) << "special tokens never come from text";
  }
}

TEST(SpecialTokens, EndDocumentsAsConfigured) {
  std::mt19937_64 random(2);
  json file = small_json(random, 4);
  const auto usual = file["added_tokens"][0]["id"].get<int32_t>(), turn = usual + 1;
  file["added_tokens"][0]["content"] = "<|end_of_text|>";
  file["added_tokens"].push_back({{"id", turn}, {"content", "<|eot_id|>"}, {"special", true}});
  const std::string said = "{{ '<|eot_id|>' }}", unsaid = "{{ eos_token }}";
  struct Case {
    const char* what;
    json settings, config;
    int32_t eos;
    std::map<std::string, std::string> more = {};
  };
  const Case cases[] = {
      {"nothing", json::object(), json::object(), usual},
      {"eos_token", {{"eos_token", "<|eot_id|>"}}, json::object(), turn},
      {"eos_token before config.json", {{"eos_token", "<|eot_id|>"}}, {{"eos_token_id", usual}}, turn},
      {"config.json", json::object(), {{"eos_token_id", turn}}, turn},
      {"config.json, eos_token is null", {{"eos_token", nullptr}}, {{"eos_token_id", turn}}, turn},
      {"a default of the class that is an ordinary token", json::object(), {{"eos_token_id", 2}}, usual},
      {"an older file",
       json::object(),
       json::object(),
       turn,
       {{"special_tokens_map.json", R"({"eos_token": "<|eot_id|>"})"}}},
      {"a turn", {{"eos_token", "<|eot_id|>"}, {"chat_template", said}}, json::object(), usual},
      {"a template without the name", {{"eos_token", "<|eot_id|>"}, {"chat_template", unsaid}}, json::object(), turn},
      {"a turn, several templates",
       {{"eos_token", "<|eot_id|>"}, {"chat_template", {{{"name", "default"}, {"template", said}}}}},
       json::object(),
       usual},
      {"a turn, template in its own file",
       {{"eos_token", "<|eot_id|>"}},
       json::object(),
       usual,
       {{"chat_template.jinja", said}}},
      {"a turn, template in JSON",
       {{"eos_token", "<|eot_id|>"}},
       json::object(),
       usual,
       {{"chat_template.json", json{{"chat_template", said}}.dump()}}},
      {"a list that begins with a turn", {{"chat_template", said}}, {{"eos_token_id", {turn, usual}}}, usual},
  };
  for (const auto& [what, settings, config, eos, more] : cases) {
    TempFolder folder;
    write(folder / "tokenizer.json", file.dump());
    write(folder / "tokenizer_config.json", settings.dump());
    write(folder / "config.json", config.dump());
    for (const auto& [name, content] : more) write(folder / name, content);
    const Tokenizer tokenizer = Tokenizer::load(folder.path().string());
    EXPECT_EQ(tokenizer.eos(), eos) << what;
    EXPECT_EQ(tokenizer.stops().front(), eos) << what;
    // A checkpoint keeps the choice.
    EXPECT_EQ(Tokenizer::from_bytes(tokenizer.bytes(), "x", tokenizer.special()).eos(), eos) << what;
  }
}

// Names that a file lacks are those of the class that AutoTokenizer of transformers 5.24 chooses.
TEST(SpecialTokens, HaveTheNamesOfTheClassIfTheFilesHaveNone) {
  std::mt19937_64 random(2);
  json file = small_json(random, 4);
  const auto end = file["added_tokens"][0]["id"].get<int32_t>();
  file["added_tokens"][0]["content"] = "<|endoftext|>";
  file["added_tokens"].push_back({{"id", end + 1}, {"content", "<s>"}, {"special", true}});
  const json gpt2{{"bos_token", "<|endoftext|>"}, {"eos_token", "<|endoftext|>"}, {"unk_token", "<|endoftext|>"}},
      qwen2{{"eos_token", "<|endoftext|>"}, {"unk_token", "<|endoftext|>"}, {"pad_token", "<|endoftext|>"}};
  struct Case {
    const char* model_type;
    json settings;
    json names;
  };
  for (const auto& [model_type, settings, names] : std::vector<Case>{
           {"gpt2", json::object(), gpt2},
           {"gpt2", {{"tokenizer_class", "PreTrainedTokenizerFast"}}, json::object()},
           {"llama", json::object(), json::object()},
           {"llama", {{"tokenizer_class", "GPT2TokenizerFast"}}, gpt2},
           {"olmo2", {{"tokenizer_class", "GPT2Tokenizer"}}, json::object()},
           {"qwen2", {{"tokenizer_class", "PreTrainedTokenizerFast"}}, qwen2},
           {"qwen3", json::object(), qwen2},
           {"qwen3",
            {{"tokenizer_class", "Qwen2Tokenizer"}, {"pad_token", nullptr}, {"bos_token", {{"content", "<s>"}}}},
            {{"bos_token", "<s>"},
             {"eos_token", "<|endoftext|>"},
             {"unk_token", "<|endoftext|>"},
             {"pad_token", nullptr}}}}) {
    TempFolder folder;
    write(folder / "tokenizer.json", file.dump());
    write(folder / "tokenizer_config.json", settings.dump());
    write(folder / "config.json", json{{"model_type", model_type}}.dump());
    const SpecialTokens special = Tokenizer::load(folder.path().string()).special();
    const std::string shown = std::string(model_type) + " " + settings.dump();
    EXPECT_EQ(json::parse(special.fields.at("tokenizer_config.json")), names) << shown;
  }
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
  const auto ids = [&] {  // without what exports write back
    SpecialTokens special = load().special();
    special.fields.clear();
    return special;
  };
  SpecialTokens expected{.eos = {end + 1}, .pad = end + 2, .text_end = end + 1};
  EXPECT_EQ(ids(), expected);
  write(folder / "config.json",
        json{{"eos_token_id", 7}, {"pad_token_id", 8}, {"bos_token_id", 9}, {"unk_token_id", -1}}.dump());
  expected.eos = {7};
  EXPECT_EQ(ids(), expected) << "a bos_token of null means that there is none";
  write(folder / "generation_config.json", json{{"eos_token_id", {5, 7, end}}}.dump());
  write(folder / "tokenizer_config.json", json{{"add_eos_token", true}}.dump());
  EXPECT_EQ(ids(), (SpecialTokens{.eos = {5, 7, end}, .bos = 9, .pad = 8}));
  EXPECT_EQ(load().special().fields,
            (std::map<std::string, std::string>{
                {"config.json", R"({"bos_token_id":9,"eos_token_id":7,"pad_token_id":8,"unk_token_id":-1})"},
                {"generation_config.json", format(R"({{"eos_token_id":[5,7,{}]}})", end)},
                {"tokenizer_config.json", "{}"}}));
  EXPECT_EQ(load().stops(), (std::vector<int32_t>{end, 5, 7}));
  for (const json& value : {json("x"), json(3.5), json({1, "2"}), json(int64_t{1} << 40)}) {
    write(folder / "generation_config.json", json{{"eos_token_id", value}}.dump());
    expect_error(Code::data, {"generation_config.json: eos_token_id: ", "expected the id of a token"}, load);
  }
  write(folder / "generation_config.json", "{\"eos_token_id\": 5");
  expect_error(Code::data, {"generation_config.json: not valid JSON"}, load);
}

TEST(SpecialTokens, AreInTheVocabularyOfTheModel) {
  TempFolder folder;
  const auto read = [&](const json& config, const json& generation = json::object()) {
    write(folder / "config.json", config.dump());
    write(folder / "generation_config.json", generation.dump());
    SpecialTokens special = read_special_tokens(folder.path(), [](const std::string&) { return std::nullopt; });
    special.fields.clear();  // exports write these back
    return special;
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

TEST(SpecialTokens, MayHaveNumbersThatOnlyPythonWrites) {
  TempFolder folder;
  write(folder / "config.json",
        R"({"eos_token_id": 7, "a": [NaN, -Infinity, "NaN \" Infinity"], "b": Infinity, "c": 1e999})");
  const auto read = [&] { return read_special_tokens(folder.path(), [](const std::string&) { return std::nullopt; }); };
  EXPECT_EQ(read().eos, std::vector<int32_t>{7});
  write(folder / "config.json", R"({"eos_token_id": NaN})");
  expect_error(Code::data, {"config.json: eos_token_id: \"NaN\", expected the id of a token"}, read);
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
  EXPECT_EQ(Tokenizer::from_bytes(file.dump(), "x", {.eos = {id}}).eos(), id);
}

}  // namespace
}  // namespace trainer::data
