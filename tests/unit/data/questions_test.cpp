// Files of questions and of prompts.
#include "data/questions.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "data/prompts.h"
#include "unit/data/fixtures.h"

namespace trainer::data {
namespace {

using testing::expect_error;
using testing::small_tokenizer;
using testing::TempFolder;
using testing::write;

/// Returns a JSON object with these members and one that is nested 100,000 levels deep.
std::string deep_line(const std::string& members) {
  return "{" + members + ", \"x\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}";
}

constexpr const char* kLines =
    R"({"ind": 1, "ctx": "She had never been ", "endings": ["happy.", "so much"], "label": 1})"
    "\n\n"
    R"({"ctx": "", "endings": ["a", "b", "c"], "label": "2"})"
    "\n";

TEST(Questions, LinesAreTokenizedWithTheirContext) {
  const TempFolder folder;
  const Tokenizer& tokenizer = small_tokenizer();
  const std::string path = write(folder / "q.jsonl", kLines);
  const auto questions = read_questions({path}, &tokenizer, tokenizer.vocab_size(), 0);
  ASSERT_EQ(questions.size(), 2u);
  EXPECT_EQ(questions[0].answer, 1);
  ASSERT_EQ(questions[0].choices.size(), 2u);
  const auto context = static_cast<int64_t>(tokenizer.encode("She had never been").size());
  for (const auto& [choice, text] : {std::pair{0, "happy."}, {1, "so much"}}) {
    const Question::Choice& c = questions[0].choices[static_cast<size_t>(choice)];
    EXPECT_EQ(tokenizer.decode(c.tokens), std::string("She had never been ") + text);
    EXPECT_EQ(c.scored, static_cast<int64_t>(c.tokens.size()) - context);
    EXPECT_EQ(tokenizer.decode(std::span(c.tokens).last(static_cast<size_t>(c.scored))), std::string(" ") + text);
    EXPECT_EQ(c.bytes, static_cast<int64_t>(std::string(text).size()));
  }
  EXPECT_EQ(questions[1].answer, 2);
  EXPECT_EQ(questions[1].choices[0].tokens.front(), tokenizer.eos());
  EXPECT_EQ(questions[1].choices[0].scored, static_cast<int64_t>(questions[1].choices[0].tokens.size()) - 1);
  EXPECT_EQ(read_questions({path, path}, &tokenizer, tokenizer.vocab_size(), 3).size(), 3u);
}

TEST(Questions, BeginWithTheBosTokenInUse) {
  const TempFolder folder;
  const std::string path = write(folder / "q.jsonl", kLines);
  Tokenizer tokenizer = small_tokenizer();
  const auto plain = read_questions({path}, &tokenizer, tokenizer.vocab_size(), 0);
  tokenizer.use_bos(1);
  const auto questions = read_questions({path}, &tokenizer, tokenizer.vocab_size(), 0);
  for (size_t q = 0; q < 2; ++q)
    for (size_t c = 0; c < plain[q].choices.size(); ++c) {
      std::vector<int32_t> expected = plain[q].choices[c].tokens;
      if (q == 1) expected.erase(expected.begin());  // an empty context
      expected.insert(expected.begin(), 1);
      EXPECT_EQ(questions[q].choices[c].tokens, expected);
      EXPECT_EQ(questions[q].choices[c].scored, plain[q].choices[c].scored);
    }
}

std::string numbers(const std::vector<int>& values) {
  std::string bytes;
  for (const int value : values) bytes += {static_cast<char>(value & 0xFF), static_cast<char>(value >> 8 & 0xFF)};
  return bytes;
}

/// Returns a file in llm.c's format with two questions: context 3 4 5 with endings 6 | 7 8; no context with 9 | 1 2.
std::string token_file() {
  std::string header(1024, '\0');
  const int32_t facts[] = {20240522, 1, 2, 28};
  std::memcpy(header.data(), facts, sizeof facts);
  return header + numbers({65535, 28, 0, 1, 2, 3, 3, 4, 5, 1, 6, 2, 7, 8}) +
         numbers({65535, 22, 1, 0, 2, 0, 1, 9, 2, 1, 2});
}

TEST(Questions, TokensAreReadAsLlmCWritesThem) {
  const TempFolder folder;
  const auto questions = read_questions({write(folder / "q.bin", token_file())}, nullptr, 10, 0);
  ASSERT_EQ(questions.size(), 2u);
  EXPECT_EQ(questions[0].answer, 1);
  EXPECT_EQ(questions[0].choices[0].tokens, (std::vector<int32_t>{3, 4, 5, 6}));
  EXPECT_EQ(questions[0].choices[1].tokens, (std::vector<int32_t>{3, 4, 5, 7, 8}));
  EXPECT_EQ(questions[0].choices[1].scored, 2);
  EXPECT_EQ(questions[1].choices[1].tokens, (std::vector<int32_t>{9, 1, 2}));  // no context: 9 is end-of-text
  EXPECT_EQ(questions[1].choices[1].scored, 2);
  EXPECT_EQ(questions[1].choices[1].bytes, 0);
}

TEST(Questions, MistakesAreNamed) {
  const TempFolder folder;
  const auto expect = [&](const std::string& bytes, const char* part, const Tokenizer* with = &small_tokenizer()) {
    expect_error(Code::data, {part}, [&] { read_questions({write(folder / "q", bytes)}, with, 10'000, 0); });
  };
  expect("", "empty; expected questions");
  expect("\n", "no questions");
  expect("{\"ctx\": 1}", "q:1: not a question; expected {\"ctx\": text");
  expect("\n{\"ctx\": \"a\", \"endings\": [\"b\"], \"label\": 0}", "q:2: 1 endings; expected two or more");
  expect("{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": 2}", "q:1: the label is 2; expected 0 to 1");
  expect("{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": \"\"}", "q:1: label is not a number");
  for (const char* label : {"1.5", "true", "null", "[0]", "\"1x\"", "\" 1\"", "18446744073709551616"})
    expect(format("{{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": {}}}", label),
           "q:1: label is not a number");
  expect("{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": 18446744073709551615}", "not a number");
  expect("{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": -1}", "the label is -1; expected 0 to 1");
  for (const char* line : {"[1]", "{\"ctx\": \"a\", \"endings\": {}, \"label\": 0}",
                           "{\"ctx\": \"a\", \"endings\": [\"b\", 2], \"label\": 0}", "{\"ctx\": \"a\"", "\xFF"})
    expect(line, "q:1: not a question");
  expect(deep_line("\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": 0"), "q:1: not a question");
  std::string many = "\"b\"";
  for (size_t i = 1; i <= kMostChoices; ++i) many += ", \"b\"";
  expect(format("{{\"ctx\": \"a\", \"endings\": [{}], \"label\": 0}}", many), "q:1: 65 endings; expected at most 64");
  expect(kLines, "trained on tokens without a tokenizer", nullptr);
  const std::string whole = token_file();
  for (size_t size = 4; size < whole.size(); ++size)  // truncated at any byte
    expect(whole.substr(0, size), "", nullptr);
  for (const auto& [at, byte, part] : {std::tuple{1024, 0, "question 0 at byte 1024 does not begin with 65535"},
                                       {1026, 30, "question 0 has 28 bytes, but its header states 30"},
                                       {1024 + 2 * 4, 65, "question 0: 65 endings; expected at most 64"},
                                       {4, 2, "version 2"}}) {
    std::string odd = whole;
    odd[static_cast<size_t>(at)] = static_cast<char>(byte);
    expect(odd, part);
  }
  EXPECT_THROW(read_questions({write(folder / "q", whole)}, nullptr, 9, 0), Error);  // token 9 is out of range
}

// --- prompts

TEST(Prompts, KeepWhatTheirLineHas) {
  const auto prompts =
      read_prompts("{\"prompt\": \"a\", \"id\": 7}\r\n \n{\"z\": [1e999, NaN], \"prompt\": \"\", \"seed\": 3}", "p");
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_EQ(prompts[0].line, "{\"prompt\": \"a\", \"id\": 7}\r");
  EXPECT_EQ(prompts[0].text, "a");
  EXPECT_FALSE(prompts[0].seed);
  EXPECT_EQ(prompts[1].line, "{\"z\": [1e999, null], \"prompt\": \"\", \"seed\": 3}");
  EXPECT_EQ(prompts[1].text, "");
  EXPECT_EQ(prompts[1].seed, 3u);
}

TEST(Prompts, MistakesAreNamed) {
  const auto expect = [](const std::string& text, const char* part) {
    expect_error(Code::data, {part}, [&] { read_prompts(text, "p"); });
  };
  expect("", "p: no prompts");
  expect(" \n\t\r\n", "p: no prompts");
  for (const char* line :
       {"[]", "7", "{", "{\"prompt\": 1}", "{\"text\": \"a\"}", "{\"prompt\": \"\xFF\"}", "{\"prompt\": 1e999}"})
    expect(std::string("{\"prompt\": \"a\"}\n\n") + line, "p:3: expected a JSON object");
  expect(deep_line("\"prompt\": \"a\""), "called \"prompt\"; values are nested too deeply");
  expect("{\"prompt\": \"a\", \"seed\": 18446744073709551616}", "p:1: seed: expected an integer from 0 to 2^64 - 1");
  expect("{\"prompt\": \"a\", }", "called \"prompt\"; at column 17: ");
}

TEST(Prompts, MayBeConversations) {
  using Role = ChatMessage::Role;
  const std::string line =
      R"({"id": 1, "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}],)"
      R"( "seed": 5})";
  const std::vector<Prompt> expected = {{"", 5, line, {{Role::system, "s"}, {Role::user, "q"}}}};
  EXPECT_EQ(read_chat_prompts(line + "\n", "p"), expected);
  const std::vector<std::pair<std::string, std::string>> refused = {
      {R"({"prompt": "q"})", "p:1: expected a JSON object with a list called \"messages\""},
      {R"({"messages": "q"})", "without messages"},
      {R"({"messages": []})", "the last one must be the user's"},
      {line + "\n" + R"({"messages": [{"role": "assistant", "content": "a"}]})", "p:2: messages: the last one"},
      {R"({"messages": [{"role": "tool", "content": "a"}]})", "tool calls"},
      {"\n", "no prompts"},
  };
  for (const auto& [text, part] : refused)
    expect_error(Code::data, {part}, [&, &text = text] { read_chat_prompts(text, "p"); });
}

}  // namespace
}  // namespace trainer::data
