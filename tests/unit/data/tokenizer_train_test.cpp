// Training of tokenizers.
#include <gtest/gtest.h>

#include "data/tokenizer.h"
#include "unit/data/fixtures.h"

namespace trainer::data {
namespace {

using namespace testing;

TEST(TokenizerTraining, LearnsFromASampleOfLargeText) {
  TempFolder folder;
  const std::string large = write(folder / "a.txt", novel() + novel() + novel());
  const Tokenizer t = Tokenizer::train({large}, 500, {}, int64_t{2} << 20);
  EXPECT_EQ(t.vocab_size(), 500);
  EXPECT_LT(static_cast<double>(t.encode(novel()).size()), 0.55 * static_cast<double>(novel().size()));
}

TEST(TokenizerTraining, LearnsFromPartsOfAllLongWords) {
  // Two words of 1.2 MB each: training uses only 2 MiB of letters, some from each word.
  Random random(3);
  std::string first, last;
  for (int i = 0; i < 1'200'000; ++i) {
    first += "ab"[pick(random, 2)];
    last += "yz"[pick(random, 2)];
  }
  TempFolder folder;
  const Tokenizer t = Tokenizer::train({write(folder / "a.txt", first + " the cat the cat " + last)}, 300);
  EXPECT_LT(t.encode("abba abab").size(), 7u);
  EXPECT_LT(t.encode("yzzy yzyz").size(), 7u);
}

TEST(TokenizerTraining, LearnsFromAFewLettersOfScriptsWithoutSpaces) {
  // 550'000 characters in lines without spaces: as with ASCII, some of the sample is left out, evenly.
  Random random(3);
  std::string text;
  for (int i = 0; i < 550'000; ++i) {
    const auto code = static_cast<uint32_t>(0x4E00 + pick(random, 12) + (i < 275'000 ? 0 : 12));
    text += {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
             static_cast<char>(0x80 | (code & 63))};
    if (i % 100 == 99) text += '\n';
  }
  TempFolder folder;
  const Tokenizer t = Tokenizer::train({write(folder / "a.txt", text)}, 500);
  const auto tokens = [&](std::string_view part) { return t.encode(part).size(); };
  EXPECT_LT(tokens(std::string_view(text).substr(0, 30'100)), 8000u);  // 10'000 characters
  EXPECT_LT(tokens(std::string_view(text).substr(text.size() - 30'100)), 8000u);
}

TEST(TokenizerTraining, LearnsFromJsonLines) {
  TempFolder folder;
  std::string lines;
  for (int i = 0; i < 200; ++i)
    lines += R"({"body": "the cat sat on the mat é\n", "other": "zzz"})"
             "\n";
  const Tokenizer t = Tokenizer::train({write(folder / "a.jsonl", lines)}, 285, {.text_key = "body"});
  EXPECT_LT(t.encode("the cat sat").size(), 11u);
}

TEST(TokenizerTraining, NamesTheLimitsOfTheVocabulary) {
  TempFolder folder;
  const std::string file = write(folder / "a.txt", "abcd abcd abce\n");
  // 266 = 3 control symbols, "\n", 256 bytes, and 6 characters: a b c d e and the space.
  expect_error(Code::data, {"a.txt", "data.vocab_size = 265", "at least 266"}, [&] { Tokenizer::train({file}, 265); });
  EXPECT_EQ(Tokenizer::train({file}, 266).vocab_size(), 266);
  const Error error = tests::error_of([&] { Tokenizer::train({file}, 5000); });
  EXPECT_EQ(error.code(), Code::data);
  const std::string message = error.what();
  const std::string mark = "use at most ";
  ASSERT_NE(message.find(mark), std::string::npos) << message;
  const int64_t most = std::stoll(message.substr(message.find(mark) + mark.size()));
  EXPECT_EQ(Tokenizer::train({file}, most).vocab_size(), most);
  expect_error(Code::data, {"at most"}, [&] { Tokenizer::train({file}, most + 1); });
}

TEST(TokenizerTraining, ItsLimitsOfTheVocabularyAgreeForReservedText) {
  TempFolder folder;
  static const std::vector<std::string> odd = {" ",      "\n",     "\t",  "\r",     "é",          "日本語",
                                               "▅",      "▅▅",     "<s>", "</s>",   "<unk>",      "<0x41>",
                                               "<0xZZ>", "\u2047", "▁",   "\ufffd", "\U0010ffff", std::string(1, '\0')};
  const auto number_after = [](const std::string& message, const std::string& mark) {
    const size_t at = message.find(mark);
    EXPECT_NE(at, std::string::npos) << message;
    return at == std::string::npos ? 0 : std::stoll(message.substr(at + mark.size()));
  };
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    std::string text = "ab";
    for (int64_t i = pick(random, 40); i >= 0; --i)
      text += pick(random, 3) == 0 ? "ab" : odd[static_cast<size_t>(pick(random, static_cast<int64_t>(odd.size())))];
    const std::string file = write(folder / "a.txt", text);
    const auto message = [&](int64_t size) {
      return std::string(tests::error_of([&] { Tokenizer::train({file}, size); }).what());
    };
    const int64_t least = number_after(message(100), "at least "),
                  most = number_after(message(100'000), "use at most ");
    for (const int64_t size : {least, most}) EXPECT_EQ(Tokenizer::train({file}, size).vocab_size(), size) << seed;
    expect_error(Code::data, {std::to_string(least)}, [&] { Tokenizer::train({file}, least - 1); });
    expect_error(Code::data, {std::to_string(most)}, [&] { Tokenizer::train({file}, most + 1); });
  }
  for (const char* nothing : {"▅▅", "\t\t", "<s>\n</s>", "<0x41>"})
    expect_error(Code::data, {"a.txt", "no text to train", "add text"},
                 [&] { Tokenizer::train({write(folder / "a.txt", nothing)}, 300); });
  // The rest of a line with U+2585, which the library would skip, is used.
  std::string lines;
  for (int i = 0; i < 300; ++i) lines += "the cat ▅ sat on the mat\n";
  EXPECT_LT(Tokenizer::train({write(folder / "a.txt", lines)}, 285).encode("the cat sat on").size(), 10u);
}

}  // namespace
}  // namespace trainer::data
