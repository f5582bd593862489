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

TEST(ByteBpe, IsRejectedIfTheFileIsWrong) {
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

TEST(ByteBpe, IsRejectedIfTheOlderFilesAreWrong) {
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

TEST(ByteBpe, HasTheSpecialTokensOfAnOlderVocabulary) {
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
TEST(ByteBpe, FollowsTheSettingsOfOlderFiles) {
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
