#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "data/bpe_file.h"
#include "data/nfc.h"
#include "data/split_pattern.h"
#include "data/text.h"
#include "data/tokenizer.h"
#include "unit/data/fixtures.h"
#include "unit/data/small_bpe.h"

namespace trainer::data {
namespace {

using namespace testing;
namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kGpt2 = fs::path(TRAINER_SOURCE_DIR) / "data/gpt2";

const Tokenizer& gpt2() {
  static const Tokenizer tokenizer = Tokenizer::load(kGpt2.string());
  return tokenizer;
}

std::string base64(std::string_view bytes) {
  const std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j)
      group = group << 8 | (i + j < bytes.size() ? static_cast<uint8_t>(bytes[i + j]) : 0u);
    for (size_t j = 0; j < 4; ++j) text += i + j > bytes.size() ? '=' : digits[group >> (18 - 6 * j) & 63];
  }
  return text;
}

TEST(ByteBpe, GivesTheTokensOfGpt2) {
  EXPECT_EQ(gpt2().vocab_size(), 50257);
  EXPECT_EQ(gpt2().eos(), 50256);
  EXPECT_EQ(gpt2().name_of(50256), "<|endoftext|>");
  EXPECT_EQ(gpt2().piece(50256), "");
  EXPECT_EQ(gpt2().file_name(), "tokenizer.json");
  int lines = 0;
  std::istringstream vectors(read_file(fs::path(TRAINER_SOURCE_DIR) / "tests/unit/data/gpt2_vectors.jsonl"));
  for (std::string line; std::getline(vectors, line); ++lines) {
    const json vector = json::parse(line);
    const auto text = vector["text"].get<std::string>();
    const auto ids = vector["ids"].get<std::vector<int32_t>>();
    ASSERT_EQ(gpt2().encode(text), ids) << line;
    ASSERT_EQ(gpt2().decode(ids), text) << line;
  }
  EXPECT_EQ(lines, 530);
}

// The count and sum of the tokens that tiktoken 0.14 gives for the novel in data/, with this vocabulary.
TEST(ByteBpe, GivesTheTokensOfANovel) {
  const std::string text = read_file(fs::path(TRAINER_SOURCE_DIR) / "data/austen.txt");
  const std::vector<int32_t> ids = gpt2().encode(text);
  EXPECT_EQ(ids.size(), 308476u);
  EXPECT_EQ(std::accumulate(ids.begin(), ids.end(), int64_t{0}), 1142024608);
  EXPECT_EQ(gpt2().decode(ids), text);
}

TEST(ByteBpe, IsTheSameFromEveryKindOfFile) {
  TempFolder folder;
  const BpeSpec spec = parse_bpe(gpt2().bytes(), "x");
  const auto [vocab, merges] = vocab_and_merges(spec);
  const auto put = [&](const char* place, const std::string& bytes) { write(folder / place, bytes); };
  put("pair/merges.txt", merges);
  put("pair/vocab.json", vocab);
  put("json/tokenizer.json", gpt2().bytes());
  std::string ranks;
  for (size_t id = 0; id + 1 < spec.pieces.size(); ++id)
    ranks += base64(spec.pieces[id]) + " " + std::to_string(id) + "\n";
  put("ranks/gpt2.tiktoken", ranks);
  const std::string text =
      read_file(fs::path(TRAINER_SOURCE_DIR) / "data/austen.txt").substr(0, 100'000) + "  \n\n\t naïve 日本";
  for (const char* place :
       {"pair", "pair/vocab.json", "pair/merges.txt", "json", "json/tokenizer.json", "ranks", "ranks/gpt2.tiktoken"}) {
    const Tokenizer other = Tokenizer::load((folder / place).string());
    EXPECT_EQ(other.vocab_size(), 50257) << place;
    EXPECT_EQ(other.eos(), 50256) << place;
    EXPECT_EQ(other.encode(text), gpt2().encode(text)) << place;
    EXPECT_EQ(other.bytes(), gpt2().bytes()) << place;
    EXPECT_EQ(Tokenizer::from_bytes(other.bytes(), "x").hash(), other.hash()) << place;
  }
}

TEST(ByteBpe, GivesAnyBytesBack) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    std::string text;
    const size_t size = random() % 300;
    while (text.size() < size) {
      const std::string parts[] = {std::string(1, static_cast<char>(random() % 256)), " ", "\n", "the", "\U0001F408"};
      text += parts[random() % std::size(parts)];
    }
    ASSERT_EQ(gpt2().decode(gpt2().encode(text)), text);
  }
  EXPECT_EQ(gpt2().encode("<|endoftext|>").size(), 7u);  // encoded as text, not as the special token
  const std::string nul("a\0b", 3);
  EXPECT_EQ(gpt2().decode(gpt2().encode(nul)), nul);
}

TEST(ByteBpe, TakesWordsOfAMillionBytes) {
  for (const char* unit : {"a", "ab", "\xE6\x97\xA5", "0"}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    ASSERT_EQ(gpt2().decode(gpt2().encode(text)), text);
  }
}

/// Encodes by the definition: applies the first merge in the list that is possible, leftmost first, until none is.
std::vector<int32_t> by_definition(const json& tokenizer, const std::string& word) {
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  for (bool again = true; again;) {
    again = false;
    for (const json& merge : tokenizer["model"]["merges"]) {
      for (size_t i = 0; i + 1 < parts.size() && !again; ++i) {
        if (parts[i] + " " + parts[i + 1] != merge.get_ref<const std::string&>()) continue;
        parts[i] += parts[i + 1];
        parts.erase(parts.begin() + static_cast<ptrdiff_t>(i) + 1);
        again = true;
      }
      if (again) break;
    }
  }
  std::vector<int32_t> ids;
  for (const std::string& part : parts) ids.push_back(tokenizer["model"]["vocab"][part].get<int32_t>());
  return ids;
}

TEST(ByteBpe, JoinsWhatTheDefinitionJoins) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 60; ++round) {
    const json file = small_json(random, 12);
    const Tokenizer tokenizer = Tokenizer::from_bytes(file.dump(), "x");
    for (int i = 0; i < 20; ++i) {
      std::string word;
      for (size_t size = 1 + random() % 70; word.size() < size;) word += static_cast<char>('a' + random() % 3);
      ASSERT_EQ(tokenizer.encode(word), by_definition(file, word)) << word << "\n" << file.dump();
    }
  }
}

// As in the tokenizers library 0.23.
TEST(ByteBpe, AMergeThatOccursTwiceHasItsLastRank) {
  std::mt19937_64 random(1);
  json file = small_json(random, 0);
  json& model = file["model"];
  for (const char* piece : {"th", "he", "the"}) model["vocab"][piece] = model["vocab"].size();
  file["added_tokens"][0]["id"] = model["vocab"].size();
  model["merges"] = {"t h", "h e", "th e"};
  EXPECT_EQ(Tokenizer::from_bytes(file.dump(), "x").encode("the"), (std::vector<int32_t>{258}));
  model["merges"].push_back("t h");
  EXPECT_EQ(Tokenizer::from_bytes(file.dump(), "x").encode("the"), (std::vector<int32_t>{'t', 257}));
}

TEST(ByteBpe, FollowsThePreTokenizerOfItsFile) {
  std::mt19937_64 random(1);
  json file = small_json(random, 5);
  const auto words = [&](const json& steps, const std::string& text) {
    file["pre_tokenizer"] = steps;
    file["model"]["ignore_merges"] = true;  // so that each known word is one token
    file["model"]["vocab"].clear();
    for (size_t byte = 0; byte < 256; ++byte) file["model"]["vocab"][byte_characters()[byte]] = byte;
    for (const char* word : {"ab", "12", "1234", "Ġab", "ĊĊ", "ab!", "abĠ", "ĠĠ", "Ġ1", "!Ċ"})
      file["model"]["vocab"][word] = file["model"]["vocab"].size();
    file["model"]["merges"] = json::array();
    file["added_tokens"][0]["id"] = file["model"]["vocab"].size();
    const Tokenizer tokenizer = Tokenizer::from_bytes(file.dump(), "x");
    std::string shown;
    for (const int32_t id : tokenizer.encode(text)) shown += tokenizer.name_of(id) + "|";
    return shown;
  };
  const json byte_level{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const json gpt2_steps{{"type", "ByteLevel"}, {"add_prefix_space", false}};
  const auto sequence = [&](const json& first, const json& last) {
    return json{{"type", "Sequence"}, {"pretokenizers", {first, last}}};
  };
  const auto split = [](const char* pattern) {
    return json{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  };
  EXPECT_EQ(words(gpt2_steps, "ab ab1234\n\nab"), "ab|Ġab|1234|Ċ|Ċ|ab|");
  EXPECT_EQ(words(gpt2_steps, "ab\n\n"), "ab|ĊĊ|");
  EXPECT_EQ(words(sequence({{"type", "Digits"}, {"individual_digits", true}}, gpt2_steps), "ab 12"), "ab|Ġ|1|2|");
  EXPECT_EQ(words(sequence({{"type", "Digits"}, {"individual_digits", false}}, gpt2_steps), "ab 12"), "ab|Ġ|12|");
  EXPECT_EQ(words(sequence(split("\\p{N}{1,2}"), byte_level), "ab1234"), "ab|12|3|4|");
  json removed = split("[a-z]+|[^a-z]");  // covers any text, so nothing is removed
  removed["behavior"] = "Removed";
  removed["invert"] = true;
  EXPECT_EQ(words(sequence(removed, byte_level), "ab 1ab"), "ab|Ġ|1|ab|");
  EXPECT_EQ(words(sequence(split("[^\\s]+"), byte_level),
                  "ab\xC2\x85"
                  "ab"),
            "ab|Â|ħ|ab|");  // U+0085 is a space
  EXPECT_EQ(words(sequence(split("\\S+"), byte_level),
                  "\xE1\xA0\x8E"
                  "ab"),
            "á|ł|İ|a|b|");  // U+180E is not a space
  EXPECT_EQ(words(sequence(split(kLlama3Pattern.data()), byte_level), "ab!\n ab"), "ab|!Ċ|Ġab|");
}

TEST(ByteBpe, FindsTokensThatAreNotWords) {
  std::mt19937_64 random(2);
  json file = small_json(random, 4);
  const size_t next = file["added_tokens"][0]["id"].get<size_t>() + 1;
  file["added_tokens"].push_back({{"id", next}, {"content", "  "}, {"special", false}});
  file["added_tokens"].push_back({{"id", next + 1}, {"content", "    "}, {"special", false}});
  const Tokenizer tokenizer = Tokenizer::from_bytes(file.dump(), "x");
  const auto id = static_cast<int32_t>(next);
  EXPECT_EQ(tokenizer.encode("c      c"), (std::vector<int32_t>{'c', id + 1, id, 'c'}));
  EXPECT_EQ(tokenizer.decode({id + 1, id}), "      ");
}

// Expected values are those of the tokenizers library 0.23 with encode_special_tokens. Its first pass finds tokens that
// are not normalized, even inside those that are; a special token hides what it overlaps.
TEST(ByteBpe, FindsAddedTokensAsTheTokenizersLibrary) {
  std::mt19937_64 random(2);
  json file = small_json(random, 4);
  const auto first = file["added_tokens"][0]["id"].get<int32_t>() + 1;
  const auto encode = [&](const std::vector<json>& tokens, const json& normalizer, const std::string& text) {
    json with = file;
    with["normalizer"] = normalizer;
    for (json token : tokens) {
      token["id"] = first + static_cast<int32_t>(with["added_tokens"].size()) - 1;
      with["added_tokens"].push_back(token);
    }
    return Tokenizer::from_bytes(with.dump(), "x").encode(text);
  };
  const auto token = [](const char* content, bool normalized) {
    return json{{"content", content}, {"special", false}, {"normalized", normalized}};
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(encode({token("qzw", true), token("wxy", false)}, nullptr, "-qzwxy-"),
            (Ids{'-', 'q', 'z', first + 1, '-'}));
  EXPECT_EQ(encode({token("</", false)}, nullptr, "x</s>y</"), (Ids{'x', '<', '/', 's', '>', 'y', first}));
  const json nfc{{"type", "NFC"}};
  if (has_nfc()) {
    EXPECT_EQ(encode({token("q\u00e9q", true)}, nfc, "qe\u0301q"), Ids{first});
    EXPECT_EQ(encode({token("qe\u0301q", true)}, nfc, "q\u00e9q"), Ids{first});
    EXPECT_EQ(encode({token("qe", false)}, nfc, "qe\u0301"), (Ids{first, 0xCC, 0x81}));
  }
  json left = token("<l>", false), right = token("<r>", false);
  left["lstrip"] = right["rstrip"] = true;
  EXPECT_EQ(encode({left, right}, nullptr, "z \n<l>\t<r> \u3000z"), (Ids{'z', first, '\t', first + 1, 'z'}));
}

// The library gives tokens the ids of the vocabulary, or the next ones, whatever the file says.
TEST(ByteBpe, RefusesIdsThatTheTokenizersLibraryChanges) {
  std::mt19937_64 random(2);
  const json good = small_json(random, 4);
  const auto end = good["added_tokens"][0]["id"].get<int32_t>();
  const auto refused = [&](const std::vector<std::pair<std::string, int32_t>>& tokens, const std::string& part) {
    json file = good;
    file["added_tokens"] = json::array();
    for (const auto& [content, id] : tokens)
      file["added_tokens"].push_back({{"id", id}, {"content", content}, {"special", content == "</s>"}});
    expect_error(Code::data, {"x: added_tokens: ", part}, [&] { Tokenizer::from_bytes(file.dump(), "x"); });
  };
  refused({{"</s>", end}, {"a", end + 1}}, format("a: id {}, but the tokenizers library gives it id 97", end + 1));
  refused({{"<q>", end + 1}, {"</s>", end}},
          format("<q>: id {}, but the tokenizers library gives it id {}", end + 1, end));
  refused({{"</s>", end}, {"<q>", end + 1}, {"<q>", end + 2}}, format("<q>: id {}", end + 2));
}

TEST(ByteBpe, GivesTheSameTokensInPieces) {
  TempFolder folder;
  std::mt19937_64 random(9);
  std::string text;
  const std::vector<std::string> parts{"word", " ",    "\n", "\n\n", "  ", "\r\n", "!",
                                       "...",  "日本", "12", "é",    " x", "\t",   "。\n"};
  while (text.size() < 60'000) text += parts[random() % parts.size()];
  const std::string file = write(folder / "text.txt", text);
  const std::vector<int32_t> whole = gpt2().encode(text);
  for (const int64_t piece_bytes : {300, 1000, 7777}) {
    PieceReader reader({file}, {}, piece_bytes, {}, gpt2().cuts());
    Encoder encoder(gpt2());
    std::vector<int32_t> ids;
    std::string joined;
    int pieces = 0;
    for (; const auto piece = reader.next(); ++pieces) {
      joined += piece->text;
      encoder.append(piece->text, ids, false);
    }
    EXPECT_EQ(joined, text);
    EXPECT_GT(pieces, 60'000 / piece_bytes / 3);
    EXPECT_EQ(ids, whole) << piece_bytes;
  }
}

}  // namespace
}  // namespace trainer::data
