// Tokens that other files add to a SentencePiece model.
#include "data/added_tokens.h"

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
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

json metaspace(const char* scheme) {
  return {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", false}};
}

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
    file["pre_tokenizer"] = metaspace("first");
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
  refused({{"<a>", 2}}, {"<a>: id 2 is </s> in the vocabulary"});
  refused({{"<s>", 500}}, {"<s>: id 500, but a token with a lower id has the same text"});
  refused({{"<a>", "500"}}, {"<a>: \"500\" is not a token id"});
  refused({{"<a>", -1}}, {"<a>: -1 is not a token id"});
  refused(json::array({3}), {"not a JSON object"});
  fs::remove(folder / "added_tokens.json");
  write(folder / "tokenizer.json", "version https://git-lfs");
  expect_error(Code::data, {"tokenizer.json: not valid JSON"}, [&] { Tokenizer::load(folder.path().string()); });
  write(folder / "tokenizer.json", "{\"key\": 1}");  // a run's record of its tokenizer
  EXPECT_EQ(Tokenizer::load(folder.path().string()).vocab_size(), 500);
}

const json kSpaces{{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}},
    kPrepend{{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}, {"prepend", "▁"}}, kSpaces}}};

/// Loads the model next to its tokenizer.json with another normalizer, pre-tokenizer and token.
Tokenizer load_with(const TempFolder& folder, const json& normalizer, const json& pre_tokenizer, const json& token) {
  json file = fast_file(prefixed_model());
  if (!token.is_null()) file["added_tokens"].push_back(token);
  file["normalizer"] = normalizer;
  file["pre_tokenizer"] = pre_tokenizer;
  write(folder / "tokenizer.model", prefixed_model());
  write(folder / "tokenizer.json", file.dump());
  return Tokenizer::load(folder.path().string());
}

// As in the tokenizers library 0.23: Prepend adds the prefix to every text between tokens, Metaspace only to text that
// does not begin with a space, "first" only at the start.
TEST(AddedTokens, HaveThePrefixAroundThemThatTokenizerJsonGives) {
  TempFolder folder;
  struct Case {
    json normalizer, pre_tokenizer;
    bool again, before_space;
  };
  const json older{{"type", "Metaspace"}, {"replacement", "▁"}, {"add_prefix_space", true}};
  for (const auto& [normalizer, pre_tokenizer, again, before_space] :
       {Case{kPrepend, nullptr, true, true}, Case{nullptr, metaspace("always"), true, false},
        Case{nullptr, older, true, false}, Case{nullptr, metaspace("first"), false, false}}) {
    for (const json& token : {entry(500, "<t>", false), json()}) {
      const Tokenizer t = load_with(folder, normalizer, pre_tokenizer, token);
      const std::string shown = normalizer.dump() + pre_tokenizer.dump() + token.dump();
      EXPECT_EQ(t.encode("a b"), by_library(prefixed_model(), "a b", true)) << shown;
      EXPECT_EQ(t.encode(" a b"), by_library(prefixed_model(), before_space ? " a b" : "a b", true)) << shown;
      EXPECT_EQ(Tokenizer::from_bytes(t.bytes(), "x").encode(" a b"), t.encode(" a b")) << shown;
      // An export says the same.
      const json exported = fast_file(t.bytes());
      EXPECT_EQ(exported["pre_tokenizer"], before_space ? json() : pre_tokenizer) << shown;
      if (token.is_null()) continue;
      Ids expected = by_library(prefixed_model(), "a", true), rest = by_library(prefixed_model(), "b", again);
      expected.push_back(500);
      expected.insert(expected.end(), rest.begin(), rest.end());
      EXPECT_EQ(t.encode("a<t>b"), expected) << shown;
      expected.resize(expected.size() - rest.size());
      rest = by_library(prefixed_model(), before_space ? " b" : "b", true);
      expected.insert(expected.end(), rest.begin(), rest.end());
      EXPECT_EQ(t.encode("a<t> b"), expected) << shown;
    }
  }
}

TEST(AddedTokens, AreNotFoundInTextWhereFilesAskForMore) {
  TempFolder folder;
  const auto refused = [&](const Tokenizer& t, const std::string& reason) {  // checkpoints with it can be loaded
    expect_error(Code::data, {"cannot encode", reason}, [&] { static_cast<void>(t.encode("a b")); });
  };
  json word = entry(500, "<t>", false), spaced = entry(500, "a b", false), normalized = entry(500, "<t>", false);
  word["single_word"] = spaced["normalized"] = normalized["normalized"] = true;
  refused(load_with(folder, nullptr, metaspace("first"), word), "the added token <t> has single_word");
  refused(load_with(folder, kPrepend, nullptr, spaced), "the added token a b is normalized");
  refused(load_with(folder, kPrepend, nullptr, normalized), "the added token <t> is normalized");
  EXPECT_EQ(load_with(folder, nullptr, metaspace("first"), spaced).encode("a b"), Ids{500});
  fs::remove(folder / "tokenizer.json");
  write(folder / "added_tokens.json", json{{"<t>", 500}}.dump());
  write(folder / "tokenizer_config.json", json{{"legacy", true}}.dump());
  refused(Tokenizer::load(folder.path().string()), "a space after each added token");
}

// Phi-3's </s> is found in text and takes the spaces behind it.
TEST(AddedTokens, MayBePieces) {
  TempFolder folder;
  json file = fast_file(prefixed_model());
  const auto id = file["model"]["vocab"]["▁the"].get<int>();
  json& end = file["added_tokens"][2];
  ASSERT_EQ(end["content"], "</s>");
  end["special"] = false;
  end["rstrip"] = true;
  json piece = end;
  piece["id"] = id;
  piece["content"] = "▁the";
  piece["rstrip"] = false;
  file["added_tokens"].push_back(piece);
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = metaspace("first");
  write(folder / "tokenizer.model", prefixed_model());
  write(folder / "tokenizer.json", file.dump());
  const Tokenizer t = Tokenizer::load(folder.path().string());
  EXPECT_EQ(t.vocab_size(), 500);
  Ids expected = by_library(prefixed_model(), "a", true), rest = by_library(prefixed_model(), "b", false);
  expected.insert(expected.end(), {2, id});
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_EQ(t.encode("a</s>  ▁theb"), expected);
  std::vector<json> sorted = file["added_tokens"];
  std::ranges::sort(sorted, {}, [](const json& token) { return token["id"].get<int>(); });
  EXPECT_EQ(fast_file(t.bytes())["added_tokens"], json(sorted));
}

TEST(AddedTokens, FollowTheSettingForThePrefix) {  // transformers 5.24: LlamaTokenizer, but not the general class
  TempFolder folder;
  write(folder / "tokenizer.model", prefixed_model());
  const auto first = [&](const json& settings) {
    write(folder / "tokenizer_config.json", settings.dump());
    return Tokenizer::load(folder.path().string()).encode("the cat");
  };
  const Ids with = by_library(prefixed_model(), "the cat", true),
            without = by_library(prefixed_model(), "the cat", false);
  EXPECT_EQ(first({{"tokenizer_class", "LlamaTokenizer"}, {"add_prefix_space", false}}), without);
  EXPECT_EQ(first({{"tokenizer_class", "LlamaTokenizerFast"}, {"add_prefix_space", true}}), with);
  EXPECT_EQ(first({{"tokenizer_class", "LlamaTokenizer"}, {"add_prefix_space", nullptr}}), with);
  EXPECT_EQ(first({{"tokenizer_class", "PreTrainedTokenizerFast"}, {"add_prefix_space", false}}), with);
}

TEST(AddedTokens, DoNotMixFilesThatEncodeDifferently) {
  TempFolder folder;
  write(folder / "tokenizer.model", prefixed_model());
  const json good = fast_file(prefixed_model());
  const auto with = [&](const char* pointer, const json& value) {
    json file = good;
    file[json::json_pointer(pointer)] = value;
    return file;
  };
  const auto metaspace_only = [&](const json& pre_tokenizer) {
    json file = with("/pre_tokenizer", pre_tokenizer);
    file["normalizer"] = nullptr;
    return file;
  };
  json merges = good["model"]["merges"], fewer = merges;
  std::swap(merges[0], merges[merges.size() - 1]);
  fewer.erase(fewer.size() - 1);
  const json digits{{"type", "Digits"}, {"individual_digits", true}};
  for (const auto& [file, part] : std::vector<std::pair<json, const char*>>{
           {metaspace_only(metaspace("never")), "only tokenizer.model adds a space before texts"},
           {with("/normalizer", kSpaces), "only tokenizer.model adds a space"},
           {with("/normalizer", {{"type", "Lowercase"}}), "normalizer: {\"type\":\"Lowercase\"}"},
           {with("/normalizer", {{"type", "NFC"}}), "normalizer: "},
           {with("/normalizer", {{"type", "Prepend"}, {"prepend", "▁"}}), "normalizer: spaces"},
           {with("/pre_tokenizer", digits), "pre_tokenizer: {\"individual_digits\""},
           {metaspace_only({{"type", "Sequence"}, {"pretokenizers", {digits, metaspace("first")}}}), "pre_tokenizer: "},
           {with("/model/merges", merges), "model.merges: the order"},
           {with("/model/merges", fewer), "model.merges: "},
           {with("/model/byte_fallback", false), "model.byte_fallback: false"},
           {with("/model/ignore_merges", true), "model.ignore_merges: true"}}) {
    write(folder / "tokenizer.json", file.dump());
    expect_error(Code::data,
                 {"tokenizer.json: it gives other tokens than", "tokenizer.model: ", part, "remove the file"},
                 [&] { Tokenizer::load(folder.path().string()); });
  }
  // The same merges in other forms.
  json pairs = json::array();
  for (const std::string merge : good["model"]["merges"])
    pairs.push_back({merge.substr(0, merge.find(' ')), merge.substr(merge.find(' ') + 1)});
  write(folder / "tokenizer.json", with("/model/merges", pairs).dump());
  EXPECT_EQ(Tokenizer::load(folder.path().string()).bytes(), prefixed_model());
  // As older versions of transformers wrote them, without that of the first piece, whose score is 0.
  pairs.erase(0);
  write(folder / "tokenizer.json", with("/model/merges", pairs).dump());
  EXPECT_EQ(Tokenizer::load(folder.path().string()).bytes(), prefixed_model());
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
  file["pre_tokenizer"] = metaspace("first");
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
