// Tokens that other files add to a SentencePiece model.
#include "data/added_tokens.h"

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/log.h"
#include "data/model_traits.h"
#include "data/sentencepiece_json.h"
#include "unit/data/fixtures.h"
#include "unit/data/small_bpe.h"

namespace trainer::data {
namespace {

using namespace testing;
using nlohmann::json;
using Ids = std::vector<int32_t>;

/// Returns a model with a dummy prefix, as most chat models have it.
const std::string& prefixed_model() {
  static const std::string model = [] {
    TempFolder folder;
    const std::string text = write(folder / "text.txt", novel().substr(0, 60'000));
    EXPECT_TRUE(sentencepiece::SentencePieceTrainer::Train({{"input", text},
                                                            {"model_prefix", (folder / "m").string()},
                                                            {"minloglevel", "2"},
                                                            {"vocab_size", "500"},
                                                            {"model_type", "bpe"},
                                                            {"byte_fallback", "true"},
                                                            {"normalization_rule_name", "identity"},
                                                            {"remove_extra_whitespaces", "false"}})
                    .ok());
    return read_file(folder / "m.model");
  }();
  return model;
}

Ids by_library(const std::string& model, const std::string& text, bool prefix) {
  sentencepiece::SentencePieceProcessor processor;
  EXPECT_TRUE(processor.LoadFromSerializedProto(prefix ? model : model + std::string(kNoDummyPrefix)).ok());
  std::vector<int> ids;
  EXPECT_TRUE(processor.Encode(text, &ids).ok());
  return ids;
}

/// Returns the tokenizer.json of the model.
json fast_file(const std::string& model) { return json::parse(sentencepiece_to_json(model).value()); }

json entry(int id, const char* content, bool special) {
  return {{"id", id}, {"content", content}, {"special", special}, {"normalized", false}};
}

// The tokenizers library 0.23 found these parts, with encode_special_tokens. Letters: lstrip, rstrip, normalized,
// special.
TEST(AddedTokens, AreFoundAsTheTokenizersLibraryDoes) {
  std::istringstream cases(read_file(fs::path(TRAINER_SOURCE_DIR) / "tests/unit/data/added_tokens.jsonl"));
  int count = 0;
  for (std::string line; std::getline(cases, line); ++count) {
    const json each = json::parse(line);
    std::vector<AddedToken> tokens;
    for (const json& token : each["tokens"]) {
      const std::string flags = token[1];
      const auto has = [&](char flag) { return flags.find(flag) != flags.npos; };
      tokens.push_back({static_cast<int32_t>(tokens.size()), token[0], false, has('l'), has('r'), has('n'), has('s')});
    }
    const std::string text = each["text"];
    json parts = json::array();
    const AddedTokenFinder finder(tokens);
    // Texts have no places; tokens are compared by their ids, and what they take in by the texts around them.
    finder.split(
        text,
        [&](std::string_view part) {
          parts.push_back({-1, part});
        },
        [&](int32_t id) {
          parts.push_back({id, nullptr});
        });
    json expected = each["parts"];
    for (json& part : expected)
      if (part[0] != -1) part[1] = nullptr;
    ASSERT_EQ(parts, expected) << line;
  }
  EXPECT_GT(count, 90);
}

TEST(AddedTokens, AreReadFromTheFirstFileThatHasThem) {
  const std::string& model = prefixed_model();
  const json fast = [&] {
    json file = fast_file(model);
    file["added_tokens"].push_back(entry(500, "<|im_start|>", false));
    file["added_tokens"].push_back(entry(501, "<|im_end|>", true));
    file["normalizer"] = nullptr;
    file["pre_tokenizer"] = {{"type", "Metaspace"}, {"prepend_scheme", "first"}, {"split", false}};
    return file;
  }();
  const json plain = [&] {
    json file = fast;
    file["added_tokens"].erase(file["added_tokens"].size() - 1);
    file["added_tokens"].erase(file["added_tokens"].size() - 1);
    return file;
  }();
  const json ids{{"<|im_end|>", 501}, {"<|im_start|>", 500}};
  const json settings{{"eos_token", "<|im_end|>"}};
  const json decoder{{"eos_token", "</s>"},
                     {"added_tokens_decoder",
                      {{"2", entry(2, "</s>", true)},
                       {"500", entry(500, "<|im_start|>", false)},
                       {"501", entry(501, "<|im_end|>", true)}}}};
  const json map{{"additional_special_tokens", {"<|im_end|>"}}};
  struct Case {
    const char* name;
    json fast, ids, settings, map;
  };
  for (const Case& each : {Case{"tokenizer.json", fast, nullptr, nullptr, nullptr},
                           Case{"added_tokens.json", nullptr, ids, settings, nullptr},
                           Case{"added_tokens.json with the map", plain, ids, nullptr, map},
                           Case{"tokenizer_config.json", nullptr, nullptr, decoder, nullptr},
                           Case{"all", fast, json{{"<wrong>", 500}}, decoder, nullptr}}) {
    TempFolder folder;
    write(folder / "tokenizer.model", model);
    const auto put = [&](const char* name, const json& content) {
      if (!content.is_null()) write(folder / name, content.dump());
    };
    put("tokenizer.json", each.fast);
    put("added_tokens.json", each.ids);
    put("tokenizer_config.json", each.settings);
    put("special_tokens_map.json", each.map);
    for (const fs::path& path : {folder.path(), folder / "tokenizer.model"}) {
      const Tokenizer t = Tokenizer::load(path.string());
      ASSERT_EQ(t.vocab_size(), 502) << each.name;
      EXPECT_EQ(t.file_name(), "tokenizer.model");
      EXPECT_EQ(t.name_of(501), "<|im_end|>");
      EXPECT_EQ(t.piece(501), "");
      EXPECT_EQ(t.piece(500), "<|im_start|>");
      const std::string text = "A house<|im_start|>user hello<|im_end|>\n";
      Ids expected = by_library(model, "A house", true);
      expected.push_back(500);
      const Ids rest = by_library(model, "user hello<|im_end|>\n", false);
      expected.insert(expected.end(), rest.begin(), rest.end());
      EXPECT_EQ(t.encode(text), expected) << each.name;
      EXPECT_EQ(t.decode(expected), text);
      Ids spaced = by_library(model, "x", true);  // its own space, and no prefix
      spaced.insert(spaced.begin(), 500);
      EXPECT_EQ(t.encode("<|im_start|> x"), spaced);
      // The serialized form has all of it.
      EXPECT_EQ(without_added_tokens(t.bytes()), model);
      const Tokenizer copy = Tokenizer::from_bytes(t.bytes(), "memory");
      EXPECT_EQ(copy.encode(text), expected);
      EXPECT_EQ(copy.hash(), t.hash());
      TempFolder elsewhere;
      write(elsewhere / "tokenizer.model", t.bytes());
      EXPECT_EQ(Tokenizer::load(elsewhere.path().string()).hash(), t.hash());
    }
  }
}

TEST(AddedTokens, LeaveModelsWithoutThemAlone) {
  TempFolder folder;
  write(folder / "tokenizer.model", prefixed_model());
  write(folder / "tokenizer.json", fast_file(prefixed_model()).dump());
  write(folder / "added_tokens.json", json{{"<unk>", 0}, {"</s>", 2}}.dump());
  EXPECT_EQ(Tokenizer::load(folder.path().string()).bytes(), prefixed_model());
}

TEST(AddedTokens, MustFollowThePieces) {
  TempFolder folder;
  write(folder / "tokenizer.model", prefixed_model());
  const auto refused = [&](const json& ids, std::vector<std::string> parts) {
    write(folder / "added_tokens.json", ids.dump());
    parts.insert(parts.begin(), "added_tokens.json: ");
    expect_error(Code::data, parts, [&] { Tokenizer::load(folder.path().string()); });
  };
  refused({{"<a>", 501}}, {"<a>: id 501, but id 500 has no token", "add one"});
  refused({{"<a>", 500}, {"<b>", 500}}, {"id 500 is also the id of <a>"});
  refused({{"<a>", 2}}, {"<a>: id 2 is </s> in tokenizer.model"});
  refused({{"<s>", 500}}, {"<s>: id 500, but a token with a lower id has the same text"});
  refused({{"<a>", "500"}}, {"<a>: \"500\" is not a token id"});
  refused({{"<a>", -1}}, {"<a>: -1 is not a token id"});
  refused(json::array({3}), {"not a JSON object"});
  fs::remove(folder / "added_tokens.json");
  write(folder / "tokenizer.json", "version https://git-lfs");
  expect_error(Code::data, {"tokenizer.json: not a JSON object"}, [&] { Tokenizer::load(folder.path().string()); });
  write(folder / "tokenizer.json", "{\"key\": 1}");  // a run's record of its tokenizer
  EXPECT_EQ(Tokenizer::load(folder.path().string()).vocab_size(), 500);
}

TEST(AddedTokens, AreNotFoundInTextWhereFilesAskForMore) {
  TempFolder folder;
  const auto load = [&](const json& token, const json& normalizer, const json& pre_tokenizer) {
    json file = fast_file(prefixed_model());
    file["added_tokens"].push_back(token);
    file["normalizer"] = normalizer;
    file["pre_tokenizer"] = pre_tokenizer;
    write(folder / "tokenizer.model", prefixed_model());
    write(folder / "tokenizer.json", file.dump());
    return Tokenizer::load(folder.path().string());
  };
  const json prepend{{"type", "Sequence"},
                     {"normalizers", {{{"type", "Prepend"}, {"prepend", "▁"}}, {{"type", "Replace"}}}}},
      replace{{"type", "Replace"}}, always{{"type", "Metaspace"}, {"prepend_scheme", "always"}},
      older{{"type", "Metaspace"}, {"add_prefix_space", true}},
      first{{"type", "Metaspace"}, {"prepend_scheme", "first"}};
  const auto refused = [&](const json& token, const json& normalizer, const json& pre_tokenizer,
                           const std::string& reason) {
    const Tokenizer t = load(token, normalizer, pre_tokenizer);  // checkpoints with it can be loaded
    expect_error(Code::data, {"cannot encode", reason}, [&] { static_cast<void>(t.encode("a b")); });
  };
  const json plain = entry(500, "<t>", false), special = entry(500, "<t>", true);
  for (const auto& [normalizer, pre_tokenizer] : {std::pair(prepend, json()), {json(), always}, {json(), older}}) {
    refused(plain, normalizer, pre_tokenizer, "a space after each added token such as <t>");
    EXPECT_EQ(load(special, normalizer, pre_tokenizer).encode("a b"), by_library(prefixed_model(), "a b", true));
  }
  json word = plain, spaced = entry(500, "a b", false);
  word["single_word"] = spaced["normalized"] = true;
  refused(word, nullptr, first, "the added token <t> has single_word");
  refused(spaced, replace, nullptr, "the added token a b has spaces and is normalized");
  EXPECT_EQ(load(spaced, nullptr, first).encode("a b"), Ids{500});
  fs::remove(folder / "tokenizer.json");
  write(folder / "added_tokens.json", json{{"<t>", 500}}.dump());
  write(folder / "tokenizer_config.json", json{{"legacy", true}}.dump());
  const Tokenizer legacy = Tokenizer::load(folder.path().string());
  expect_error(Code::data, {"a space after each added token"}, [&] { static_cast<void>(legacy.encode("a b")); });
}

TEST(AddedTokens, DoNotMixFilesWithOtherPieces) {
  TempFolder folder;
  write(folder / "tokenizer.model", prefixed_model());
  json file = fast_file(prefixed_model());
  const std::string piece = "▁the";
  const int id = file["model"]["vocab"][piece];
  file["model"]["vocab"].erase(piece);
  file["model"]["vocab"]["▁teh"] = id;
  write(folder / "tokenizer.json", file.dump());
  const auto load = [&] { return Tokenizer::load(folder.path().string()); };
  expect_error(Code::data,
               {"tokenizer.json", "tokenizer.model: id " + std::to_string(id), "\"▁the\"", "\"▁teh\"",
                "remove the file", "byte_fallback"},
               load);
  file["model"]["vocab"].erase("▁teh");
  write(folder / "tokenizer.json", file.dump());
  expect_error(Code::data, {"\"▁the\" in tokenizer.model and missing in tokenizer.json"}, load);
  file["model"]["vocab"][piece] = id;
  file["model"]["vocab"]["▁more"] = 500;
  write(folder / "tokenizer.json", file.dump());
  expect_error(Code::data, {"tokenizer.model lacks \"▁more\""}, load);
  // A file that can be read is read, with one log line.
  std::mt19937_64 random(2);
  write(folder / "tokenizer.json", small_json(random, 4).dump());
  std::vector<std::string> lines;
  const log::Sink before = log::set_sink([&](log::Level, const std::string& line) { lines.push_back(line); });
  EXPECT_EQ(load().file_name(), "tokenizer.json");
  log::set_sink(before);
  ASSERT_EQ(lines.size(), 1u);
  expect_parts(lines[0], {"tokenizer.json: read instead of tokenizer.model", "id 0 is \"<unk>\""});
  // Other names are read as before.
  write(folder / "my.model", prefixed_model());
  EXPECT_EQ(Tokenizer::load((folder / "my.model").string()).vocab_size(), 500);
}

TEST(AddedTokens, ALineEndsByteMayBeNamedByItsCharacter) {  // as in Gemma's tokenizer.json
  TempFolder folder;
  write(folder / "tokenizer.model", prefixed_model());
  json file = fast_file(prefixed_model());
  file["model"]["vocab"]["\t"] = file["model"]["vocab"]["<0x09>"];
  file["model"]["vocab"].erase("<0x09>");
  file["added_tokens"].push_back(entry(500, "<t>", true));
  write(folder / "tokenizer.json", file.dump());
  EXPECT_EQ(Tokenizer::load(folder.path().string()).vocab_size(), 501);
}

TEST(AddedTokens, ComeBackInTokenizerJson) {
  TempFolder folder;
  json file = fast_file(prefixed_model());
  json token{{"id", 500},      {"content", "<t>"},    {"single_word", false}, {"lstrip", true},
             {"rstrip", true}, {"normalized", false}, {"special", false}};
  file["added_tokens"].push_back(token);
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", false}};
  write(folder / "tokenizer.model", prefixed_model());
  write(folder / "tokenizer.json", file.dump());
  const Tokenizer t = Tokenizer::load(folder.path().string());
  EXPECT_EQ(fast_file(t.bytes()), file);
  // Damage is reported.
  std::string damaged = t.bytes();
  damaged[prefixed_model().size() + 4] = 'x';  // the first character after the field's tag and length
  expect_error(Code::data, {"memory"}, [&] { Tokenizer::from_bytes(damaged, "memory"); });
}

}  // namespace
}  // namespace trainer::data
