// Reads the questions of multiple_choice.h.
#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/files.h"
#include "run/multiple_choice.h"

namespace trainer::run {
namespace {

using nlohmann::json;

constexpr int32_t kMagic = 20240522, kVersion = 1;
constexpr size_t kHeaderBytes = 1024;
constexpr uint16_t kStart = 0xFFFF;

std::string read_questions_file(const std::string& path) {
  std::string bytes = data::read_file(path);
  if (bytes.empty()) throw Error(Code::data, format("{}: empty; expected questions", path));
  return bytes;
}

/// Throws Code::data for a question that cannot be answered or scored. `where` names it.
void check(const Question& question, const std::string& where, int64_t vocab) {
  const auto choices = static_cast<int64_t>(question.choices.size());
  if (choices < 2) throw Error(Code::data, format("{}: {} endings; expected two or more", where, choices));
  if (question.answer < 0 || question.answer >= choices)
    throw Error(Code::data, format("{}: the label is {}; expected 0 to {}", where, question.answer, choices - 1));
  for (const Question::Choice& choice : question.choices) {
    if (choice.scored < 1) throw Error(Code::data, format("{}: an ending without tokens", where));
    for (const int32_t token : choice.tokens)
      if (token < 0 || token >= vocab)
        throw Error(Code::data, format("{}: token {}, but the model's vocabulary has {}", where, token, vocab));
  }
}

/// Returns context and ending as tokens. Where the context has none, the end of a text stands before the ending.
Question::Choice choice_of(const std::string& context, const std::string& ending, const data::Tokenizer& tokenizer) {
  Question::Choice choice;
  const size_t before = tokenizer.encode(context).size();
  choice.tokens = tokenizer.encode(context + " " + ending);
  choice.scored = static_cast<int64_t>(choice.tokens.size() - std::min(before, choice.tokens.size()));
  choice.bytes = static_cast<int64_t>(ending.size());
  if (before == 0) choice.tokens.insert(choice.tokens.begin(), std::max(tokenizer.eos(), 0));
  return choice;
}

/// HellaSwag's label is a number, in some copies of it text.
int64_t label_of(const json& label) {
  return label.is_string() ? std::stoll(label.get<std::string>()) : label.get<int64_t>();
}

Question question_of(const json& line, const data::Tokenizer& tokenizer) {
  Question question;
  std::string context = line.at("ctx").get<std::string>();
  while (context.ends_with(' ')) context.pop_back();  // the space belongs to the ending
  for (const json& ending : line.at("endings"))
    question.choices.push_back(choice_of(context, ending.get<std::string>(), tokenizer));
  question.answer = label_of(line.at("label"));
  return question;
}

void read_lines(const std::string& path, const std::string& text, const data::Tokenizer* tokenizer, int64_t vocab,
                size_t most, std::vector<Question>& questions) {
  if (tokenizer == nullptr)
    throw Error(Code::data, format("{}: the model was trained on tokens without a tokenizer; expected questions as "
                                   "tokens (llm.c's .bin)",
                                   path));
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size() && questions.size() < most; ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = format("{}:{}", path, number + 1);
    try {
      questions.push_back(question_of(json::parse(line), *tokenizer));
    } catch (const json::exception&) {
      throw Error(Code::data, format("{}: no question; expected {{\"ctx\": text, \"endings\": [texts], \"label\": "
                                     "number of the right one}}",
                                     where));
    } catch (const std::logic_error&) {  // of stoll
      throw Error(Code::data, format("{}: the label is no number", where));
    }
    check(questions.back(), where, vocab);
  }
}

/// The numbers of a file of llm.c behind its header.
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
    throw Error(Code::data,
                format("{}: version {} with {} questions; expected version {}", path, header[1], header[2], kVersion));
  Numbers numbers(path, bytes);
  for (int64_t i = 0; i < header[2] && questions.size() < most; ++i) {
    const size_t begin = numbers.at();
    if (numbers.next(i) != kStart)
      throw Error(Code::data, format("{}: question {} at byte {} does not begin with {}", path, i, begin, kStart));
    const size_t size = numbers.next(i);
    numbers.next(i);  // its number
    Question& question = questions.emplace_back();
    question.answer = numbers.next(i);
    question.choices.resize(numbers.next(i));
    std::vector<int32_t> context;
    numbers.append(i, context);
    for (Question::Choice& choice : question.choices) {
      choice.tokens = context;
      numbers.append(i, choice.tokens);
      choice.scored = static_cast<int64_t>(choice.tokens.size() - context.size());
      // Nothing before the ending: the end of a text, which is the last token of GPT-2.
      if (context.empty()) choice.tokens.insert(choice.tokens.begin(), static_cast<int32_t>(vocab - 1));
    }
    if (numbers.at() - begin != size)
      throw Error(Code::data, format("{}: question {} has {} bytes, but says {}", path, i, numbers.at() - begin, size));
    check(question, format("{}: question {}", path, i), vocab);
  }
}

}  // namespace

std::vector<Question> read_questions(const std::vector<std::string>& files, const data::Tokenizer* tokenizer,
                                     int64_t vocab, int64_t most) {
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

}  // namespace trainer::run
