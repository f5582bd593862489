#include "data/task_lines.h"

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/join.h"
#include "data/tasks.h"

namespace trainer::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kKinds =
    "query, choices, gold | context_options, continuation, gold | context, continuation | ctx, endings, label "
    "(HellaSwag) | question, choices, answerKey (ARC) | goal, sol1, sol2, label (PIQA)";
constexpr const char* kSpace = " \t\r\n\v\f";

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(kSpace);
  return first == text.npos ? "" : text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) text.replace(at, from.size(), to);
}

/// Returns HellaSwag's text without the traces of WikiHow's mark-up.
std::string without_markup(const std::string& from) {
  std::string text = trimmed(from), out;
  replace_all(text, " [title]", ". ");
  for (size_t at = 0; at < text.size();) {  // "[" to the next "]" in the same line
    const size_t end = text[at] == '[' ? text.find_first_of("]\n", at) : text.npos;
    const bool removed = end != text.npos && text[end] == ']';
    if (!removed) out += text[at];
    at = removed ? end + 1 : at + 1;
  }
  replace_all(out, "  ", " ");
  return out;
}

/// Python's capitalize(), of ASCII letters.
std::string capitalized(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

/// A line, with access to members of the expected types.
class Line {
 public:
  Line(const Json& line, const std::string& where) : line_(line), where_(where) {}

  bool has(std::initializer_list<const char*> names) const {
    return line_.is_object() && std::ranges::all_of(names, [&](const char* name) { return line_.contains(name); });
  }
  [[noreturn]] void refuse(const std::string& why) const { throw Error(Code::data, format("{}: {}", where_, why)); }
  std::string text(const char* name) const { return text_of(line_[name], name); }
  std::vector<std::string> texts(const Json& list, const char* name) const {
    if (!list.is_array()) refuse(format("{}: expected a list of texts", name));
    std::vector<std::string> texts;
    for (const Json& each : list) texts.push_back(text_of(each, name));
    return texts;
  }
  std::vector<std::string> texts(const char* name) const { return texts(line_[name], name); }
  const Json& member(const char* name) const { return line_[name]; }
  /// Returns an index, which some copies of benchmarks write as text.
  int64_t index(const char* name) const {
    const Json& value = line_[name];
    int64_t number = 0;
    if (value.is_number_integer() &&
        !(value.is_number_unsigned() && value.get<uint64_t>() > std::numeric_limits<int64_t>::max()))
      return value.get<int64_t>();
    if (value.is_string()) {
      const auto& digits = value.get_ref<const std::string&>();
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
      if (error == std::errc() && end == digits.data() + digits.size()) return number;
    }
    refuse(format("{} is not a number", name));
  }

 private:
  std::string text_of(const Json& value, const char* name) const {
    if (!value.is_string()) refuse(format("{}: expected a text", name));
    return value.get<std::string>();
  }
  const Json& line_;
  const std::string& where_;
};

TextQuestion arc(const Line& line) {
  const Json& choices = line.member("choices");
  if (!choices.is_object() || !choices.contains("text") || !choices.contains("label"))
    line.refuse("choices: expected {\"text\": [texts], \"label\": [letters]}");
  const std::vector<std::string> labels = line.texts(choices["label"], "choices.label");
  const std::string key = line.text("answerKey");
  const auto right = std::ranges::find(labels, key);
  if (right == labels.end())
    line.refuse(format("the answerKey is \"{}\"; expected one of {}", key, fmt::join(labels, ", ")));
  return {{"Question: " + line.text("question") + "\nAnswer:"},
          line.texts(choices["text"], "choices.text"),
          right - labels.begin()};
}

TextQuestion hellaswag(const Line& line) {
  TextQuestion question{{}, line.texts("endings"), line.index("label")};
  if (line.has({"ctx_a", "ctx_b", "activity_label"})) {
    for (std::string& ending : question.endings) ending = without_markup(ending);
    question.contexts = {without_markup(line.text("activity_label") + ": " + line.text("ctx_a") + " " +
                                        capitalized(line.text("ctx_b")))};
  } else {
    std::string context = line.text("ctx");
    while (context.ends_with(' ')) context.pop_back();  // the space belongs to the ending
    question.contexts = {context};
  }
  return question;
}

TextQuestion read(const Line& line, const Json& json) {
  if (line.has({"query", "choices", "gold"})) return {{line.text("query")}, line.texts("choices"), line.index("gold")};
  if (line.has({"context_options", "continuation", "gold"}))
    return {line.texts("context_options"), {line.text("continuation")}, line.index("gold")};
  if (line.has({"context", "continuation"})) return {{trimmed(line.text("context"))}, {line.text("continuation")}};
  if (line.has({"endings", "label"}) && (line.has({"ctx"}) || line.has({"ctx_a", "ctx_b", "activity_label"})))
    return hellaswag(line);
  if (line.has({"question", "choices", "answerKey"})) return arc(line);
  if (line.has({"goal", "sol1", "sol2", "label"}))
    return {
        {"Question: " + line.text("goal") + "\nAnswer:"}, {line.text("sol1"), line.text("sol2")}, line.index("label")};
  std::vector<std::string> names;
  if (json.is_object())
    for (const auto& [name, value] : json.items()) names.push_back(name);
  line.refuse(format("not a question: it has {}; expected one of: {}",
                     names.empty() ? "no members" : format("{}", fmt::join(names, ", ")), kKinds));
}

}  // namespace

TextQuestion question_of(const Json& json, const std::string& where) {
  const Line line(json, where);
  TextQuestion question = read(line, json);
  const size_t texts = question.texts();
  if (question.contexts.empty() || question.endings.empty() || (texts < 2 && !line.has({"context", "continuation"})))
    line.refuse(
        format("{} choices; expected two or more", std::min(question.contexts.size(), question.endings.size())));
  if (texts > kMostChoices) line.refuse(format("{} choices; expected at most {}", texts, kMostChoices));
  if (question.answer < 0 || question.answer >= static_cast<int64_t>(texts))
    line.refuse(format("the label is {}; expected 0 to {}", question.answer, texts - 1));
  if (std::ranges::any_of(question.endings, &std::string::empty)) line.refuse("a choice is empty; expected a text");
  return question;
}

}  // namespace trainer::data
