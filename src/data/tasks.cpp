#include "data/tasks.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "base/error.h"
#include "config/file_kind.h"
#include "data/byte_source.h"
#include "data/file_list.h"
#include "data/files.h"
#include "data/json_lines.h"
#include "data/python_random.h"
#include "data/task_lines.h"

namespace trainer::data {
namespace {

using config::Metric;
using config::Task;

constexpr int32_t kMagic = 20240522, kVersion = 1;
constexpr size_t kHeaderBytes = 1024;
constexpr uint16_t kStart = 0xFFFF;
constexpr const char* kRefusal = "expected a question as a JSON object";

/// A question as text, and where it was read.
struct Placed {
  TextQuestion text;
  std::string where;
};

/// Returns the members of all kinds of questions, see task_lines.cpp.
Columns columns() {
  return {"query", "choices",        "gold", "context_options", "context", "continuation", "ctx_a",
          "ctx_b", "activity_label", "ctx",  "endings",         "label",   "question",     "answerKey",
          "goal",  "sol1",           "sol2"};
}

std::string content_of(const std::string& path) {
  const bool plain = config::packing_of(path) == config::Packing::none;
  const std::string bytes = plain ? read_file(path) : whole_text(path, columns());
  if (bytes.empty()) throw Error(Code::data, format("{}: empty; expected questions", path));
  return bytes;
}

/// Throws Code::data for a question that cannot be answered or scored.
void check(const Question& question, const std::string& where, int64_t vocab) {
  const auto choices = static_cast<int64_t>(question.choices.size());
  if (question.answer < 0 || question.answer >= choices)
    throw Error(Code::data, format("{}: the label is {}; expected 0 to {}", where, question.answer, choices - 1));
  for (const Question::Choice& choice : question.choices) {
    if (choice.scored < 1) throw Error(Code::data, format("{}: a choice is empty; expected at least one token", where));
    for (const int32_t token : choice.tokens)
      if (token < 0 || token >= vocab)
        throw Error(Code::data, format("{}: token {}, but the model's vocabulary has {}", where, token, vocab));
  }
}

/// Returns the number of tokens with which all choices begin, or, `reversed`, end.
int64_t common_tokens(const std::vector<Question::Choice>& choices, bool reversed) {
  int64_t common = std::ssize(choices.front().tokens);
  for (const Question::Choice& choice : choices) {
    const std::vector<int32_t>&a = choices.front().tokens, &b = choice.tokens;
    const int64_t most = std::min(common, std::ssize(b));
    common = reversed ? std::mismatch(a.rbegin(), a.rbegin() + most, b.rbegin()).first - a.rbegin()
                      : std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin();
  }
  return common;
}

/// Returns a question's choices as tokens; `examples` precede each context. Texts begin with the BOS token in use; else
/// with the end-of-text token if nothing precedes the scored tokens, or with metric core always.
Question encoded(const TextQuestion& text, const std::string& examples, const Task& task, const Tokenizer& tokenizer) {
  Question question{.choices = {}, .answer = text.answer};
  const bool core = task.metric == Metric::core;
  for (size_t i = 0; i < text.texts(); ++i) {
    std::string context = examples + text.context(i) + task.delimiter;
    Question::Choice& choice = question.choices.emplace_back();
    choice.tokens = tokenizer.encode(context + text.ending(i));
    while (!context.empty() && std::strchr(" \t\r\n\v\f", context.back()) != nullptr) context.pop_back();
    const size_t before = tokenizer.encode(context).size();
    choice.scored = static_cast<int64_t>(choice.tokens.size() - std::min(before, choice.tokens.size()));
    choice.bytes = std::ssize(text.ending(i));
    choice.characters = std::ranges::count_if(text.ending(i), [](char c) { return (c & 0xC0) != 0x80; });
    if (tokenizer.bos() >= 0 || before == 0 || core)
      choice.tokens.insert(choice.tokens.begin(),
                           tokenizer.bos() >= 0 ? tokenizer.bos() : std::max(tokenizer.eos(), 0));
  }
  if (!core || text.texts() == 1) return question;
  const int64_t common = common_tokens(question.choices, text.is_schema());
  for (Question::Choice& choice :
       question.choices)  // at least one token, of a choice with which a different one begins
    choice.scored = std::max<int64_t>(1, text.is_schema() ? common : std::ssize(choice.tokens) - common);
  return question;
}

/// Returns the examples of question `index`, each followed by a blank line.
std::string examples_of(const std::vector<Placed>& questions, size_t index, const Task& task) {
  std::string text;
  if (task.shots == 0) return text;
  PythonRandom random(static_cast<uint32_t>(1234 + index));
  for (const int64_t drawn : random.sample(std::ssize(questions) - 1, task.shots)) {
    const auto other = static_cast<size_t>(drawn);
    const TextQuestion& example = questions[other + (other >= index ? 1 : 0)].text;
    const auto right = static_cast<size_t>(example.answer);
    text += example.context(right) + task.delimiter + example.ending(right) + "\n\n";
  }
  return text;
}

/// The numbers after the header of an llm.c file.
class Numbers {
 public:
  Numbers(const std::string& path, std::string_view bytes) : path_(path), bytes_(bytes) {}
  uint16_t next(int64_t question) {
    uint16_t value = 0;
    if (at_ + sizeof value > bytes_.size())
      throw Error(Code::data, format("{}: ends at byte {} within question {}", path_, bytes_.size(), question));
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  void append(int64_t question, std::vector<int32_t>& tokens) {
    for (int64_t left = next(question); left > 0; --left) tokens.push_back(next(question));
  }
  size_t at() const { return at_; }

 private:
  const std::string& path_;
  std::string_view bytes_;
  size_t at_ = kHeaderBytes;
};

void read_tokens(const std::string& path, const std::string& bytes, int64_t vocab, size_t most,
                 std::vector<Question>& questions) {
  int32_t header[3] = {};
  if (bytes.size() < kHeaderBytes)
    throw Error(Code::data, format("{}: {} bytes; a header has {}", path, bytes.size(), kHeaderBytes));
  std::memcpy(header, bytes.data(), sizeof header);
  if (header[1] != kVersion || header[2] < 0)
    throw Error(Code::data, format("{}: version {} with {} questions; expected version {} and a count of at least 0",
                                   path, header[1], header[2], kVersion));
  Numbers numbers(path, bytes);
  for (int64_t i = 0; i < header[2] && questions.size() < most; ++i) {
    const std::string where = format("{}: question {}", path, i);
    const size_t begin = numbers.at();
    if (numbers.next(i) != kStart)
      throw Error(Code::data, format("{} at byte {} does not begin with {}", where, begin, kStart));
    const size_t size = numbers.next(i);
    numbers.next(i);  // the question's number
    Question& question = questions.emplace_back();
    question.answer = numbers.next(i);
    const size_t choices = numbers.next(i);
    if (choices < 2 || choices > kMostChoices)
      throw Error(Code::data, format("{}: {} choices; expected {}", where, choices,
                                     choices < 2 ? "two or more" : format("at most {}", kMostChoices)));
    question.choices.resize(choices);
    std::vector<int32_t> context;
    numbers.append(i, context);
    for (Question::Choice& choice : question.choices) {
      choice.tokens = context;
      numbers.append(i, choice.tokens);
      choice.scored = static_cast<int64_t>(choice.tokens.size() - context.size());
      // An empty context is replaced by the end-of-text token, which is the last token of GPT-2.
      if (context.empty()) choice.tokens.insert(choice.tokens.begin(), static_cast<int32_t>(vocab - 1));
    }
    if (numbers.at() - begin != size)
      throw Error(Code::data, format("{} has {} bytes, but its header states {}", where, numbers.at() - begin, size));
    check(question, where, vocab);
  }
}

/// Puts the questions in the order in which the metric takes them, and removes those that are not put.
void choose(std::vector<Placed>& texts, const Task& task) {
  if (task.metric == Metric::core) PythonRandom(1337).shuffle(texts);
  if (task.questions > 0 && std::ssize(texts) > task.questions) texts.resize(static_cast<size_t>(task.questions));
  if (task.shots > 0 && task.shots >= std::ssize(texts))
    throw Error(Code::data,
                format("{}: shots = {}, but there are only {} questions; expected fewer shots than questions",
                       task.files.front(), task.shots, texts.size()));
}

}  // namespace

std::vector<Question> read_questions(const Task& task, const Tokenizer* tokenizer, int64_t vocab) {
  std::vector<Question> questions;
  std::vector<Placed> texts;
  const size_t limit = task.questions > 0 ? static_cast<size_t>(task.questions) : std::numeric_limits<size_t>::max();
  std::vector<std::string> files;
  for (const std::string& pattern : task.files)
    for (std::string& path : expand_glob(pattern)) files.push_back(std::move(path));
  for (const std::string& path : files) {
    const std::string bytes = content_of(path);
    int32_t magic = 0;
    std::memcpy(&magic, bytes.data(), std::min(bytes.size(), sizeof magic));
    if (magic == kMagic) {
      if (task.shots > 0 || task.metric == Metric::core || !texts.empty())
        throw Error(Code::data, format("{}: {}", path,
                                       texts.empty() ? "shots and metric \"core\" need text, but these are tokens"
                                                     : "a task's files must all be text, or all tokens"));
      read_tokens(path, bytes, vocab, limit, questions);
      continue;
    }
    if (tokenizer == nullptr)
      throw Error(Code::data, format("{}: the model was trained on tokens without a tokenizer; expected questions as "
                                     "tokens (llm.c's .bin)",
                                     path));
    if (!questions.empty()) throw Error(Code::data, format("{}: a task's files must all be text, or all tokens", path));
    for_each_json_line(bytes, path, kRefusal,
                       [&](int64_t number, const nlohmann::ordered_json& line, const std::string&) {
                         if (task.metric != Metric::core && texts.size() >= limit) return false;
                         const std::string where = format("{}:{}", path, number);
                         texts.push_back({question_of(line, where), where});
                         return true;
                       });
  }
  if (questions.empty() && texts.empty()) throw Error(Code::data, format("{}: no questions", task.files.front()));
  if (!questions.empty()) return questions;
  choose(texts, task);
  for (size_t i = 0; i < texts.size(); ++i) {
    questions.push_back(encoded(texts[i].text, examples_of(texts, i, task), task, *tokenizer));
    check(questions.back(), texts[i].where, vocab);
  }
  return questions;
}

int64_t truncate(std::vector<Question>& questions, int64_t seq_len) {
  int64_t truncated = 0;
  for (Question& question : questions) {
    bool any = false;
    for (Question::Choice& choice : question.choices) {
      const int64_t excess = std::ssize(choice.tokens) - seq_len - 1;
      if (excess > 0) choice.tokens.erase(choice.tokens.begin(), choice.tokens.begin() + excess);
      choice.scored = std::min(choice.scored, std::ssize(choice.tokens) - 1);
      any |= excess > 0;
    }
    truncated += any;
  }
  return truncated;
}

std::string hash_of(const std::vector<Question>& questions) {
  RunningChecksum sum;
  const auto add = [&](std::span<const std::byte> bytes) {
    sum.add({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  };
  for (const Question& question : questions) {
    add(std::as_bytes(std::span(&question.answer, 1)));
    for (const Question::Choice& choice : question.choices) {
      const int64_t numbers[] = {std::ssize(choice.tokens), choice.scored, choice.characters, choice.bytes};
      add(std::as_bytes(std::span(numbers)));
      add(std::as_bytes(std::span(choice.tokens)));
    }
  }
  return to_string(sum.value());
}

size_t chosen(Metric metric, const Question& question, std::span<const double> likelihoods) {
  const auto length = [&](const Question::Choice& choice) -> double {
    switch (metric) {
      case Metric::acc:
        return 1;
      case Metric::acc_norm:
        return static_cast<double>(choice.characters);
      case Metric::acc_bytes:
        return static_cast<double>(choice.bytes);
      case Metric::acc_tokens:
      case Metric::core:
        break;
    }
    return static_cast<double>(choice.scored);
  };
  size_t best = 0;
  for (size_t i = 1; i < likelihoods.size(); ++i)
    if (likelihoods[i] / length(question.choices[i]) > likelihoods[best] / length(question.choices[best])) best = i;
  return best;
}

}  // namespace trainer::data
