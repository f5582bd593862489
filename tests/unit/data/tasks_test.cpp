// Tasks: their files, metrics and examples; and files of prompts.
#include "data/tasks.h"

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
  const auto questions = read_questions({.files = {path}}, &tokenizer, tokenizer.vocab_size());
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
  EXPECT_EQ(read_questions({.files = {path, path}, .questions = 3}, &tokenizer, tokenizer.vocab_size()).size(), 3u);
}

TEST(Questions, BeginWithTheBosTokenInUse) {
  const TempFolder folder;
  const std::string path = write(folder / "q.jsonl", kLines);
  Tokenizer tokenizer = small_tokenizer();
  const auto plain = read_questions({.files = {path}}, &tokenizer, tokenizer.vocab_size());
  tokenizer.use_bos(1);
  const auto questions = read_questions({.files = {path}}, &tokenizer, tokenizer.vocab_size());
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
  const auto questions = read_questions({.files = {write(folder / "q.bin", token_file())}}, nullptr, 10);
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
    expect_error(Code::data, {part}, [&] { read_questions({.files = {write(folder / "q", bytes)}}, with, 10'000); });
  };
  expect("", "empty; expected questions");
  expect("\n", "no questions");
  expect("{\"ctx\": 1}", "q:1: not a question: it has ctx; expected one of: query, choices, gold | context_options");
  expect("{\"ctx\": 1, \"endings\": [\"a\", \"b\"], \"label\": 0}", "q:1: ctx: expected a text");
  expect("\n{\"ctx\": \"a\", \"endings\": [\"b\"], \"label\": 0}", "q:2: 1 choices; expected two or more");
  expect("{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": 2}", "q:1: the label is 2; expected 0 to 1");
  expect("{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": \"\"}", "q:1: label is not a number");
  for (const char* label : {"1.5", "true", "null", "[0]", "\"1x\"", "\" 1\"", "18446744073709551616"})
    expect(format("{{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": {}}}", label),
           "q:1: label is not a number");
  expect("{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": 18446744073709551615}", "not a number");
  expect("{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": -1}", "the label is -1; expected 0 to 1");
  expect("[1]", "q:1: not a question: it has no members");
  expect("{\"ctx\": \"a\", \"endings\": {}, \"label\": 0}", "q:1: endings: expected a list of texts");
  expect("{\"ctx\": \"a\", \"endings\": [\"b\", 2], \"label\": 0}", "q:1: endings: expected a text");
  expect("{\"ctx\": \"a\", \"endings\": [\"b\", \"\"], \"label\": 0}", "q:1: a choice is empty");
  expect(R"({"question": "a", "choices": {"text": ["b", "c"], "label": ["A", "B"]}, "answerKey": "C"})",
         "q:1: the answerKey is \"C\"; expected one of A, B");
  expect(R"({"query": "a", "choices": ["b", "c"], "gold": 2})", "q:1: the label is 2; expected 0 to 1");
  expect(R"({"context_options": [], "continuation": "b", "gold": 0})", "q:1: 0 choices; expected two or more");
  for (const char* line : {"{\"ctx\": \"a\"", "\xFF"}) expect(line, "q:1: expected a question as a JSON object");
  expect(deep_line("\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": 0"), "q:1: expected a question");
  std::string many = "\"b\"";
  for (size_t i = 1; i <= kMostChoices; ++i) many += ", \"b\"";
  expect(format("{{\"ctx\": \"a\", \"endings\": [{}], \"label\": 0}}", many), "q:1: 65 choices; expected at most 64");
  expect(kLines, "trained on tokens without a tokenizer", nullptr);
  const std::string whole = token_file();
  for (size_t size = 4; size < whole.size(); ++size)  // truncated at any byte
    expect(whole.substr(0, size), "", nullptr);
  for (const auto& [at, byte, part] : {std::tuple{1024, 0, "question 0 at byte 1024 does not begin with 65535"},
                                       {1026, 30, "question 0 has 28 bytes, but its header states 30"},
                                       {1024 + 2 * 4, 65, "question 0: 65 choices; expected at most 64"},
                                       {4, 2, "version 2"}}) {
    std::string odd = whole;
    odd[static_cast<size_t>(at)] = static_cast<char>(byte);
    expect(odd, part);
  }
  EXPECT_THROW(read_questions({.files = {write(folder / "q", whole)}}, nullptr, 9), Error);  // token 9 is out of range
}

// --- kinds of lines, metrics and examples

/// Reads one line with any metric; returns what its text is, decoded: context and scored text of each choice.
std::vector<std::pair<std::string, std::string>> texts_of(const std::string& lines, config::Task task = {}) {
  const TempFolder folder;
  task.files = {write(folder / "q.jsonl", lines)};
  const Tokenizer& tokenizer = small_tokenizer();
  std::vector<std::pair<std::string, std::string>> texts;
  for (const Question& question : read_questions(task, &tokenizer, tokenizer.vocab_size()))
    for (const Question::Choice& choice : question.choices) {
      const std::string text = tokenizer.decode(choice.tokens);
      const std::string scored = tokenizer.decode(std::span(choice.tokens).last(static_cast<size_t>(choice.scored)));
      texts.emplace_back(text.substr(0, text.size() - scored.size()), scored);
    }
  return texts;
}
using Texts = std::vector<std::pair<std::string, std::string>>;

TEST(Tasks, EachBenchmarkIsKnownByItsMembers) {
  EXPECT_EQ(texts_of(R"({"query": "She was", "choices": ["happy", "so much"], "gold": 1})"),
            (Texts{{"She was", " happy"}, {"She was", " so much"}}));
  EXPECT_EQ(texts_of(R"({"context_options": ["She", "He"], "continuation": "was happy", "gold": 0})"),
            (Texts{{"She", " was happy"}, {"He", " was happy"}}));
  EXPECT_EQ(texts_of(R"({"context": " She was\n", "continuation": "happy"})"), (Texts{{"She was", " happy"}}));
  EXPECT_EQ(texts_of(R"({"ctx": "a", "ctx_a": "she [title] is [x] here", "ctx_b": "THEN i", "activity_label": " Go", )"
                     R"("endings": ["she [step]  goes", "so much"], "label": "0"})"),
            (Texts{{"Go: she. is here Then i", " she  goes"}, {"Go: she. is here Then i", " so much"}}));
  EXPECT_EQ(texts_of(R"({"question": "Who?", "choices": {"text": ["she", "he"], "label": ["A", "B"]}, )"
                     R"("answerKey": "B"})"),
            (Texts{{"Question: Who?\nAnswer:", " she"}, {"Question: Who?\nAnswer:", " he"}}));
  EXPECT_EQ(texts_of(R"({"goal": "go", "sol1": "she", "sol2": "he", "label": 1})"),
            (Texts{{"Question: go\nAnswer:", " she"}, {"Question: go\nAnswer:", " he"}}));
}

TEST(Tasks, ExamplesAreThoseOfPythonsGenerator) {
  std::string lines;
  for (int i = 0; i < 10; ++i)
    lines += format("{{\"query\": \"q{}\", \"choices\": [\"n\", \"y{}\"], \"gold\": 1}}\n", i, i);
  const auto example = [](int i) { return format("q{}: y{}\n\n", i, i); };
  config::Task task{.shots = 3, .delimiter = ": "};
  EXPECT_EQ(texts_of(lines, task)[0].first, example(8) + example(2) + example(1) + "q0:");
  EXPECT_EQ(texts_of(lines, task)[2].first, example(7) + example(8) + example(4) + "q1:");
  task.metric = config::Metric::core;  // in the order 0 3 7 2 1 6 4 5 8 9
  const std::string text = texts_of(lines, task)[2].first;
  EXPECT_NE(text.find(example(5) + example(8) + example(1) + "q3:"), text.npos) << text;
  task.shots = 10;
  expect_error(Code::data, {"shots = 10", "only 10 questions"}, [&] { texts_of(lines, task); });
}

TEST(Tasks, CoreScoresWhatChoicesDoNotShare) {
  const config::Task core{.metric = config::Metric::core};
  const TempFolder folder;
  const Tokenizer& tokenizer = small_tokenizer();
  const auto read = [&](const std::string& line) {
    config::Task task = core;
    task.files = {write(folder / "q.jsonl", line)};
    return read_questions(task, &tokenizer, tokenizer.vocab_size()).front();
  };
  const Question choices = read(R"({"query": "She was", "choices": ["so happy", "so much"], "gold": 1})");
  EXPECT_EQ(choices.choices[0].tokens.front(), tokenizer.eos());
  EXPECT_EQ(choices.choices[0].scored,
            std::ssize(choices.choices[0].tokens) - std::ssize(tokenizer.encode("She was so")) - 1);
  const Question schema = read(R"({"context_options": ["She", "He"], "continuation": "was happy", "gold": 0})");
  EXPECT_EQ(schema.choices[0].scored, schema.choices[1].scored);
  EXPECT_GE(schema.choices[0].scored, std::ssize(tokenizer.encode(" was happy")));
  EXPECT_EQ(read(R"({"query": "She", "choices": ["was", "was"], "gold": 1})").choices[1].scored, 1);
}

TEST(Tasks, MetricsDivideByTheirOwnLength) {
  using config::Metric;
  const auto choices = [](const std::vector<std::string>& texts, const std::vector<int64_t>& scored) {
    Question question;
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto characters = std::ranges::count_if(texts[i], [](char c) { return (c & 0xC0) != 0x80; });
      question.choices.push_back(
          {.tokens = {}, .scored = scored[i], .characters = characters, .bytes = std::ssize(texts[i])});
    }
    return question;
  };
  const auto expect = [](const Question& question, const std::vector<double>& likelihoods,
                         const std::vector<size_t>& by) {
    for (size_t metric = 0; metric < by.size(); ++metric)
      EXPECT_EQ(chosen(static_cast<Metric>(metric), question, likelihoods), by[metric]) << config::kMetricNames[metric];
  };
  expect(choices({"a long ending", "short", "the longest ending"}, {4, 2, 5}), {-12, -9.5, -14}, {1, 2, 2, 2});
  expect(choices({"ééééé", "abcdefg"}, {5, 3}), {-6, -6.2}, {0, 1, 0, 0});
  expect(choices({"x", "y"}, {1, 1}), {-3, -3}, {0, 0, 0, 0, 0});
  // Mean losses 1.1, 1.4 and 0.6333 after a common prefix.
  expect(choices({"a", "b", "c"}, {2, 1, 3}), {-2.2, -1.4, -1.9}, {1, 1, 1, 2, 2});
  EXPECT_NEAR(centred(0.4, 0.25), 0.2, 1e-15);
  EXPECT_NEAR(centred(0.55, 0.62), -0.18421052631578935, 1e-15);
  EXPECT_NEAR((centred(0.4, 0.25) + centred(0.55, 0.62) + centred(0.3, 0) + centred(0.2, 0.091)) / 4,
              0.10892536622083265, 1e-15);
}

TEST(Tasks, LongTextsLoseTheirBeginning) {
  std::vector<Question> questions(2);
  for (Question& question : questions)
    question.choices = {{.tokens = {1, 2, 3}, .scored = 1}, {.tokens = {1, 2, 4, 5, 6}, .scored = 4}};
  questions[0].choices.pop_back();
  const std::string before = hash_of(questions);
  EXPECT_EQ(truncate(questions, 3), 1);
  EXPECT_EQ(questions[1].choices[1].tokens, (std::vector<int32_t>{2, 4, 5, 6}));
  EXPECT_EQ(questions[1].choices[1].scored, 3);
  EXPECT_NE(hash_of(questions), before);
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
