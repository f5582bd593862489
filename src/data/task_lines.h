#pragma once
// The questions of a task as text, and the benchmarks whose lines they are read from.
#include <algorithm>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace trainer::data {

/// One context and several endings, several contexts and one ending (a schema), or one of each, whose ending is to be
/// predicted. Text `i` is that of context and ending i, or of the only one.
struct TextQuestion {
  std::vector<std::string> contexts, endings;
  int64_t answer = 0;

  size_t texts() const { return std::max(contexts.size(), endings.size()); }
  bool is_schema() const { return contexts.size() > 1; }
  const std::string& context(size_t i) const { return contexts[std::min(i, contexts.size() - 1)]; }
  const std::string& ending(size_t i) const { return endings[std::min(i, endings.size() - 1)]; }
};

/// Reads a line by its members:
///   query, choices, gold                                 choices
///   context_options, continuation, gold                  schema
///   context, continuation                                prediction; the context is trimmed
///   ctx_a, ctx_b, activity_label, endings, label         HellaSwag, prepared as by lm-evaluation-harness
///   ctx, endings, label                                  the same as it is
///   question, choices {text, label}, answerKey           ARC
///   goal, sol1, sol2, label                              PIQA
/// Throws Code::data, beginning with `where`, for other members, an answer that is none of the choices, or an empty
/// ending.
TextQuestion question_of(const nlohmann::ordered_json& line, const std::string& where);

}  // namespace trainer::data
