#include "data/questions.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "data/files.h"
#include "data/json_lines.h"

namespace trainer::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr int32_t kMagic = 20240522, kVersion = 1;
constexpr size_t kHeaderBytes = 1024;
constexpr uint16_t kStart = 0xFFFF;

std::string read_questions_file(const std::string& path) {
  std::string bytes = read_file(path);
  if (bytes.empty()) throw Error(Code::data, format("{}: empty; expected questions", path));
  return bytes;
}

/// Throws Code::data unless a question may have `choices` endings. `where` identifies the question in messages.
void require_choices(size_t choices, const std::string& where) {
  if (choices < 2) throw Error(Code::data, format("{}: {} endings; expected two or more", where, choices));
  if (choices > kMostChoices)
    throw Error(Code::data, format("{}: {} endings; expected at most {}", where, choices, kMostChoices));
}

/// Throws Code::data for a question that cannot be answered or scored.
void check(const Question& question, const std::string& where, int64_t vocab) {
  const auto choices = static_cast<int64_t>(question.choices.size());
  if (question.answer < 0 || question.answer >= choices)
    throw Error(Code::data, format("{}: the label is {}; expected 0 to {}", where, question.answer, choices - 1));
  for (const Question::Choice& choice : question.choices) {
    if (choice.scored < 1)
      throw Error(Code::data, format("{}: an ending is empty; expected at least one token", where));
    for (const int32_t token : choice.tokens)
      if (token < 0 || token >= vocab)
        throw Error(Code::data, format("{}: token {}, but the model's vocabulary has {}", where, token, vocab));
  }
}

/// Returns context and ending as tokens, after the BOS token if texts begin with it. Otherwise, if the context has no
/// tokens, the end-of-text token precedes the ending.
Question::Choice choice_of(const std::string& context, const std::string& ending, const Tokenizer& tokenizer) {
  Question::Choice choice;
  const size_t before = tokenizer.encode(context).size();
  choice.tokens = tokenizer.encode(context + " " + ending);
  choice.scored = static_cast<int64_t>(choice.tokens.size() - std::min(before, choice.tokens.size()));
  choice.bytes = static_cast<int64_t>(ending.size());
  if (tokenizer.bos() >= 0 || before == 0)
    choice.tokens.insert(choice.tokens.begin(), tokenizer.bos() >= 0 ? tokenizer.bos() : std::max(tokenizer.eos(), 0));
  return choice;
}

/// Returns the label as an integer, which some copies of HellaSwag write as text; empty for other values.
std::optional<int64_t> label_of(const Json& label) {
  if (label.is_number_unsigned() && label.get<uint64_t>() > std::numeric_limits<int64_t>::max()) return std::nullopt;
  if (label.is_number_integer()) return label.get<int64_t>();
  if (!label.is_string()) return std::nullopt;
  const auto& text = label.get_ref<const std::string&>();
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

bool is_question(const Json& line) {
  return line.is_object() && line.contains("ctx") && line["ctx"].is_string() && line.contains("endings") &&
         line["endings"].is_array() && line.contains("label") &&
         std::ranges::all_of(line["endings"], [](const Json& ending) { return ending.is_string(); });
}

constexpr const char* kRefusal =
    "not a question; expected {\"ctx\": text, \"endings\": [texts], \"label\": index of the right ending}";

Question question_of(const Json& line, const std::string& where, const Tokenizer& tokenizer) {
  if (!is_question(line)) throw Error(Code::data, format("{}: {}", where, kRefusal));
  const std::optional<int64_t> label = label_of(line["label"]);
  if (!label) throw Error(Code::data, format("{}: label is not a number", where));
  require_choices(line["endings"].size(), where);
  Question question{.choices = {}, .answer = *label};
  std::string context = line["ctx"].get<std::string>();
  while (context.ends_with(' ')) context.pop_back();  // the space belongs to the ending
  for (const Json& ending : line["endings"]) {
    if (ending.get_ref<const std::string&>().empty())
      throw Error(Code::data, format("{}: an ending is empty; expected a text", where));
    question.choices.push_back(choice_of(context, ending.get<std::string>(), tokenizer));
  }
  return question;
}

void read_lines(const std::string& path, const std::string& text, const Tokenizer* tokenizer, int64_t vocab,
                size_t most, std::vector<Question>& questions) {
  if (tokenizer == nullptr)
    throw Error(Code::data, format("{}: the model was trained on tokens without a tokenizer; expected questions as "
                                   "tokens (llm.c's .bin)",
                                   path));
  if (questions.size() >= most) return;
  for_each_json_line(text, path, kRefusal, [&](int64_t number, const Json& line, const std::string&) {
    const std::string where = format("{}:{}", path, number);
    questions.push_back(question_of(line, where, *tokenizer));
    check(questions.back(), where, vocab);
    return questions.size() < most;
  });
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
    const size_t begin = numbers.at();
    if (numbers.next(i) != kStart)
      throw Error(Code::data, format("{}: question {} at byte {} does not begin with {}", path, i, begin, kStart));
    const size_t size = numbers.next(i);
    numbers.next(i);  // the question's number
    Question& question = questions.emplace_back();
    question.answer = numbers.next(i);
    const size_t choices = numbers.next(i);
    require_choices(choices, format("{}: question {}", path, i));
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
      throw Error(Code::data, format("{}: question {} has {} bytes, but its header states {}", path, i,
                                     numbers.at() - begin, size));
    check(question, format("{}: question {}", path, i), vocab);
  }
}

}  // namespace

std::vector<Question> read_questions(const std::vector<std::string>& files, const Tokenizer* tokenizer, int64_t vocab,
                                     int64_t most) {
  std::vector<Question> questions;
  const size_t limit = most > 0 ? static_cast<size_t>(most) : std::numeric_limits<size_t>::max();
  for (const std::string& path : files) {
    const std::string bytes = read_questions_file(path);
    int32_t magic = 0;
    std::memcpy(&magic, bytes.data(), std::min(bytes.size(), sizeof magic));
    if (magic == kMagic) {
      read_tokens(path, bytes, vocab, limit, questions);
    } else {
      read_lines(path, bytes, tokenizer, vocab, limit, questions);
    }
  }
  if (questions.empty()) throw Error(Code::data, format("{}: no questions", files.front()));
  return questions;
}

}  // namespace trainer::data
