#include "data/tokenizer.h"

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/utf8.h"
#include "data/model_traits.h"
#include "data/sentencepiece_json.h"
#include "data/tokenize.h"
#include "unit/data/fixtures.h"

namespace trainer::data {
namespace {

using namespace testing;

std::vector<int32_t> by_library(const std::string& model, const std::string& text) {
  sentencepiece::SentencePieceProcessor processor;
  EXPECT_TRUE(processor.LoadFromSerializedProto(model).ok());
  std::vector<int> ids;
  EXPECT_TRUE(processor.Encode(text, &ids).ok());
  return ids;
}

/// Trains a SentencePiece model with settings that this program does not use.
std::string foreign_model(std::unordered_map<std::string, std::string> settings) {
  TempFolder folder;
  settings.insert({{"input", write(folder / "text.txt", novel().substr(0, 60'000))},
                   {"model_prefix", (folder / "m").string()},
                   {"minloglevel", "2"},
                   {"vocab_size", "500"}});
  EXPECT_TRUE(sentencepiece::SentencePieceTrainer::Train(settings).ok());
  return read_file(folder / "m.model");
}

TEST(Tokenizer, HasTheRequestedVocabularyAndItsSpecialTokens) {
  const Tokenizer& t = small_tokenizer();
  EXPECT_EQ(t.vocab_size(), 600);
  EXPECT_EQ(t.eos(), 2);
  EXPECT_EQ(t.piece(t.eos()), "");
  EXPECT_FALSE(t.dummy_prefix());
  const std::vector<int32_t> ids = t.encode("a\n\nb");
  ASSERT_EQ(ids.size(), 4u);
  EXPECT_EQ(ids[1], ids[2]);
  EXPECT_EQ(t.piece(ids[1]), "\n");
}

TEST(Tokenizer, GivesRandomTextBackToTheByte) {
  const Tokenizer& t = small_tokenizer();
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    const std::string text = random_text(random, pick(random, 400));
    const std::vector<int32_t> ids = t.encode(text);
    ASSERT_EQ(t.decode(ids), text) << "seed " << seed;
  }
}

TEST(Tokenizer, GivesAnyBytesBack) {
  const Tokenizer& t = small_tokenizer();
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    const std::string bytes =
        random_bytes(random, pick(random, 100)) + random_text(random, 30) + random_bytes(random, 5);
    ASSERT_EQ(t.decode(t.encode(bytes)), bytes) << "seed " << seed;
  }
}

TEST(Tokenizer, GivesTheLibrarysTokens) {
  const Tokenizer& t = small_tokenizer();
  EXPECT_EQ(t.encode(novel().substr(200'000, 60'000)), by_library(t.bytes(), novel().substr(200'000, 60'000)));
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    std::string text = random_text(random, 300);
    for (size_t at = text.find("▁"); at != std::string::npos; at = text.find("▁")) text.erase(at, 3);  // means a space
    ASSERT_EQ(t.encode(text), by_library(t.bytes(), text)) << "seed " << seed;
  }
}

TEST(Tokenizer, ItsJsonAddsThePrefixWhereverSentencePieceDoes) {
  const std::unordered_map<std::string, std::string> settings = {{"model_type", "bpe"},
                                                                 {"byte_fallback", "true"},
                                                                 {"remove_extra_whitespaces", "false"},
                                                                 {"normalization_rule_name", "identity"}};
  const auto json_of = [&](const std::unordered_map<std::string, std::string>& more) {
    auto all = settings;
    all.insert(more.begin(), more.end());
    return nlohmann::json::parse(sentencepiece_to_json(foreign_model(all)).value());
  };
  // "Metaspace" would not add the prefix to a text that begins with a space.
  const nlohmann::json prefixed = json_of({});
  EXPECT_EQ(prefixed["pre_tokenizer"], nullptr);
  EXPECT_EQ(prefixed["normalizer"]["normalizers"][0], (nlohmann::json{{"type", "Prepend"}, {"prepend", "▁"}}));
  EXPECT_EQ(prefixed["normalizer"]["normalizers"][1]["content"], "▁");
  // A normalizer would add the prefix after a user-defined piece; SentencePiece does not.
  const nlohmann::json defined = json_of({{"user_defined_symbols", "<x>"}});
  EXPECT_EQ(defined["normalizer"], nullptr);
  EXPECT_EQ(defined["pre_tokenizer"]["prepend_scheme"], "first");
  EXPECT_EQ(json_of({{"add_dummy_prefix", "false"}})["pre_tokenizer"]["prepend_scheme"], "never");
}

TEST(Tokenizer, TokenizesPiecesCutAfterNewlinesAsTheWhole) {
  const Tokenizer& t = small_tokenizer();
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Random random(seed);
    const std::string text = random_text(random, 600);
    std::vector<int32_t> ids;
    Encoder encoder(t);
    for (size_t begin = 0; begin < text.size();) {
      size_t end = text.find('\n', begin + static_cast<size_t>(pick(random, 50)));
      end = end == std::string::npos ? text.size() : end + 1;
      encoder.append(std::string_view(text).substr(begin, end - begin), ids, begin == 0);
      begin = end;
    }
    ASSERT_EQ(ids, t.encode(text)) << "seed " << seed;
  }
}

TEST(Tokenizer, IsTheSameForTheSameText) {
  TempFolder folder;
  const std::string file = write(folder / "a.txt", novel().substr(0, 50'000));
  EXPECT_EQ(Tokenizer::train({file}, 500).hash(), Tokenizer::train({file}, 500).hash());
  EXPECT_EQ(Tokenizer::train({file}, 500).hash().size(), 32u);
  EXPECT_EQ(small_tokenizer().encode(novel().substr(0, 100'000)).size(), 45'437u) << "as of commit 3c5eb075";
  EXPECT_NE(Tokenizer::train({file}, 500).hash(), Tokenizer::train({file}, 501).hash());
}

TEST(Tokenizer, RejectsFilesThatAreNotModels) {
  TempFolder folder;
  expect_error(Code::data, {"none.model", "cannot open"}, [&] { Tokenizer::load((folder / "none.model").string()); });
  const std::string model = small_tokenizer().bytes();
  std::string flipped = model;
  flipped[3] = '\x7f';
  const std::string nul_in_piece = model + std::string("\n\x05\n\x03\x61\0\x62", 7);  // used to abort the program
  int number = 0;
  for (const std::string& bytes : {std::string(), std::string("garbage"), std::string(1000, '\0'),
                                   model.substr(0, model.size() / 2), novel().substr(0, 5000), flipped, nul_in_piece}) {
    const std::string file = write(folder / fmt::format("bad{}.model", number++), bytes);
    expect_error(Code::data, {file, "not a usable SentencePiece model"}, [&] { Tokenizer::load(file); });
  }
  expect_error(Code::data, {"token 600", "600"},
               [&] { static_cast<void>(small_tokenizer().decode(std::vector{600})); });
}

TEST(Tokenizer, RejectsTextThatItsModelDoesNotCover) {
  const std::string paragraph = "\xC2\xA7", control_symbol = "\n\x06\n\x02" + paragraph + "\x18\x03";
  const Tokenizer t = Tokenizer::from_bytes(small_tokenizer().bytes() + control_symbol, "odd.model");
  EXPECT_EQ(t.encode("The same."), small_tokenizer().encode("The same."));
  expect_error(Code::data, {"odd.model", "cannot encode the text", "train a different one"},
               [&] { static_cast<void>(t.encode("see " + paragraph + " 4")); });
}

TEST(Tokenizer, LoadedFromItsBytesIsTheSame) {
  const Tokenizer copy = Tokenizer::from_bytes(small_tokenizer().bytes(), "memory");
  EXPECT_EQ(copy.hash(), small_tokenizer().hash());
  EXPECT_EQ(copy.encode("The same."), small_tokenizer().encode("The same."));
}

TEST(Tokenizer, TakesModelsWithADummyPrefix) {
  const std::string model = foreign_model({{"model_type", "bpe"},
                                           {"byte_fallback", "true"},
                                           {"character_coverage", "1.0"},
                                           {"normalization_rule_name", "identity"},
                                           {"remove_extra_whitespaces", "false"}});
  const Tokenizer t = Tokenizer::from_bytes(model, "foreign");
  EXPECT_TRUE(t.dummy_prefix());
  EXPECT_EQ(t.encode("It is a truth"), by_library(model, "It is a truth"));
  for (const std::string text : {"It is a truth", " spaced", "two\nlines\n", "日本"})
    EXPECT_EQ(t.decode(t.encode(text)), text);
}

/// Returns a model with symbols for one, two and four line ends.
std::string model_with_line_ends() {
  return foreign_model({{"model_type", "bpe"},
                        {"byte_fallback", "true"},
                        {"normalization_rule_name", "identity"},
                        {"add_dummy_prefix", "false"},
                        {"remove_extra_whitespaces", "false"},
                        {"user_defined_symbols", "\n,\n\n,\n\n\n\n"}});
}

TEST(Tokenizer, TakesTheLongestSymbolForLineEnds) {
  const std::string model = model_with_line_ends();
  const Tokenizer t = Tokenizer::from_bytes(model, "foreign");
  const std::string many(1'000'000, '\n');
  EXPECT_EQ(t.encode(many).size(), 250'000u);
  for (int count = 1; count < 12; ++count)
    for (const std::string ends = std::string(static_cast<size_t>(count), '\n');
         const std::string& text :
         {"It is" + ends + "a truth", ends, "a" + ends, ends + "b", "one\n two" + ends + "\n three\n"})
      EXPECT_EQ(t.encode(text), by_library(model, text)) << count;
}

TEST(Tokenizer, KeepsLineEndsTogetherInPieces) {
  const Tokenizer t = Tokenizer::from_bytes(model_with_line_ends(), "foreign");
  std::mt19937_64 random(5);
  std::string text;
  while (text.size() < 60'000) text += "It is" + std::string(random() % 9, '\n');
  TempFolder folder;
  const std::string file = write(folder / "text.txt", text);
  const std::vector<int32_t> whole = t.encode(text);
  for (const int64_t piece_bytes : {5, 37, 300}) {  // windows without a place to split are doubled
    PieceReader reader({file}, {}, piece_bytes, {}, t.cuts());
    Encoder encoder(t);
    std::vector<int32_t> ids;
    while (const auto piece = reader.next()) encoder.append(piece->text, ids, false);
    EXPECT_EQ(ids, whole) << piece_bytes;
  }
}

TEST(Tokenizer, RefusesToEncodeWithModelsThatItWouldNotFollow) {
  const std::string model = foreign_model({{"model_type", "bpe"}, {"treat_whitespace_as_suffix", "true"}});
  const Tokenizer t = Tokenizer::from_bytes(model, "foreign");  // checkpoints with it can be loaded
  const std::vector<std::string> parts = {"foreign", "treat_whitespace_as_suffix"};
  expect_error(Code::data, parts, [&] { static_cast<void>(t.encode("a b")); });
  TempFolder folder;
  const std::vector<std::string> files = {write(folder / "a.txt", "a b\n")};
  for (const int threads : {1, 4})  // in worker threads, too
    expect_error(Code::data, parts, [&] { tokenize_files(files, t, folder / "o.bin", {.threads = threads}); });
}

/// Texts of several lines for models that change text.
std::string text_to_normalise(Random& random, int64_t length) {
  static const std::vector<std::string> odd = {"\n",     "\n\n",   " \n ",   "\r\n",    "\t",     "  ",     "   ",
                                               " ",      "\x01",   "ﬁ",      "A\u030a", "Ａ",     "㍿",     "e\u0301",
                                               "\u3000", "\u00a0", "\u200b", "\ufeff",  "日本語", "\u0301", "İ",
                                               "ß",      "½",      "<x>",    "</s>",    "▁",      "\u2028", "\u2047"};
  std::string text;
  while (static_cast<int64_t>(text.size()) < length) {
    if (pick(random, 5) < 2)
      text += odd[static_cast<size_t>(pick(random, static_cast<int64_t>(odd.size())))];
    else
      text += novel().substr(static_cast<size_t>(pick(random, 1'000'000)), static_cast<size_t>(pick(random, 40)));
  }
  utf8_repair(text);
  return text;
}

TEST(Tokenizer, GivesTheLibrarysTokensOfModelsThatChangeText) {
  using Settings = std::unordered_map<std::string, std::string>;
  const std::vector<Settings> rules = {{{"normalization_rule_name", "nmt_nfkc"}},
                                       {{"normalization_rule_name", "nfkc_cf"}},
                                       {{"normalization_rule_name", "identity"}}};
  const std::vector<Settings> more = {{},
                                      {{"byte_fallback", "true"}, {"remove_extra_whitespaces", "false"}},
                                      {{"add_dummy_prefix", "false"}},
                                      {{"add_dummy_prefix", "false"}, {"remove_extra_whitespaces", "false"}},
                                      {{"user_defined_symbols", "\n,<x>"}, {"byte_fallback", "true"}},
                                      {{"split_by_whitespace", "false"}, {"byte_fallback", "true"}}};
  for (const char* type : {"bpe", "unigram"})
    for (const Settings& rule : rules)
      for (const Settings& each : more) {
        Settings settings = each;
        settings.insert(rule.begin(), rule.end());
        settings["model_type"] = type;
        const std::string model = foreign_model(settings);
        const Tokenizer t = Tokenizer::from_bytes(model, "foreign");
        Random random(7);
        for (int i = 0; i < 25; ++i) {
          // Longer texts are split, which changes rounding in the scores of unigram models.
          std::string text = text_to_normalise(random, pick(random, type == std::string("bpe") ? 12'000 : 3000));
          if (settings["normalization_rule_name"] == "identity" && each.contains("byte_fallback"))
            for (size_t at = text.find("▁"); at != std::string::npos; at = text.find("▁")) text.erase(at, 3);
          ASSERT_EQ(t.encode(text), by_library(model, text))
              << type << " " << nlohmann::json(settings).dump() << " " << nlohmann::json(text).dump();
        }
        EXPECT_EQ(t.decode(t.encode("a single man in possession")), "a single man in possession");
      }
}

TEST(Tokenizer, ASpaceWithoutAPieceIsItsByte) {
  TempFolder folder;
  Random random(1);
  std::string solid;
  for (int i = 0; i < 9000; ++i) solid += i % 30 == 29 ? '\n' : "abcdefghij"[pick(random, 10)];
  const Tokenizer trained = Tokenizer::train({write(folder / "a.txt", solid)}, 300);
  const Tokenizer prefixed = Tokenizer::from_bytes(trained.bytes() + std::string(kDummyPrefix), "prefixed");
  for (const std::string text : {"a b", " c  d\n ef", "\u2581 \u2581", " "}) {
    const std::vector<int32_t> ids = trained.encode(text);
    EXPECT_EQ(trained.decode(ids), text);
    EXPECT_EQ(std::ranges::count_if(ids, [&](int32_t id) { return trained.piece(id) == " "; }),
              std::ranges::count(text, ' '));
    EXPECT_EQ(prefixed.decode(prefixed.encode(text)), text);
    EXPECT_EQ(prefixed.piece(prefixed.encode(text).front()), " ");
  }
  // tokenizer.json must not replace spaces by U+2581 either.
  const auto json = nlohmann::json::parse(sentencepiece_to_json(trained.bytes()).value());
  EXPECT_EQ(json["normalizer"], nullptr);
  EXPECT_EQ(json["pre_tokenizer"], nullptr);
  const auto prepends = nlohmann::json::parse(sentencepiece_to_json(prefixed.bytes()).value());
  EXPECT_EQ(prepends["normalizer"], (nlohmann::json{{"type", "Prepend"}, {"prepend", " "}}));
}

TEST(StreamDecoder, HoldsBackUnfinishedCharactersOnly) {
  const Tokenizer& t = small_tokenizer();
  StreamDecoder decoder(t);
  const std::string text = "é日\U0001F600 end";
  std::string joined;
  for (const int32_t id : t.encode(text)) {
    const std::string part = decoder.push(id);
    EXPECT_EQ(utf8_first_invalid(part), part.size());
    joined += part;
  }
  EXPECT_EQ(joined + decoder.finish(), text);
}

TEST(StreamDecoder, JoinsToTheDecodedTextForAnyTokens) {
  const Tokenizer& t = small_tokenizer();
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    std::vector<int32_t> ids;
    for (int i = 0; i < 50; ++i) ids.push_back(static_cast<int32_t>(pick(random, 600)));
    std::string expected, joined;
    StreamDecoder decoder(t);
    for (const int32_t id : ids) {
      expected += t.piece(id);
      joined += decoder.push(id);
    }
    ASSERT_EQ(joined + decoder.finish(), expected) << "seed " << seed;
    ASSERT_EQ(t.decode(ids), expected) << "seed " << seed;
  }
}

}  // namespace
}  // namespace trainer::data
