#pragma once
// Tasks: questions whose answers a model chooses by likelihood, from the files of common benchmarks.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/data.h"
#include "data/tokenizer.h"

namespace trainer::data {

struct Question {
  /// A text whose last tokens are scored. With a single choice, the answer is right if each of them is the most likely.
  struct Choice {
    std::vector<int32_t> tokens;
    int64_t scored = 0;                 // number of scored tokens
    int64_t characters = 0, bytes = 0;  // length of the choice's text; 0: unknown
  };
  std::vector<Choice> choices;
  int64_t answer = 0;  // index of the right choice
};

/// The largest number of choices per question; each is stored with the whole context.
inline constexpr size_t kMostChoices = 64;

/// Reads the questions of a task, at most task.questions (0: all): JSON lines, whose members tell what they are
/// (task_lines.h), or llm.c's token files (magic 20240522). Lines need a tokenizer; task.shots and metric core need
/// lines. With task.shots, each text begins with that many other questions and their answers, drawn as nanochat and
/// DCLM draw them for CORE.
///   Scored are a choice's tokens: those of context, delimiter and choice, encoded together, after as many as context
///   and delimiter have, without white space at the end. With metric core: the tokens after those that all choices
///   begin with, or, if only contexts differ, those that all texts end with.
/// Throws Code::data naming file and line, or question; Code::io when a file cannot be read.
std::vector<Question> read_questions(const config::Task& task, const Tokenizer* tokenizer, int64_t vocab);

/// Shortens texts to `seq_len` + 1 tokens, by their beginning. Returns the number of questions with such texts.
int64_t truncate(std::vector<Question>& questions, int64_t seq_len);

/// Returns a hash of the questions and their answers.
std::string hash_of(const std::vector<Question>& questions);

/// Returns the index of the choice that a metric selects by the log-likelihoods of the scored tokens, divided by 1
/// (acc) or by the choice's characters, bytes or scored tokens (acc_tokens, core); the first one in case of a tie.
size_t chosen(config::Metric metric, const Question& question, std::span<const double> likelihoods);

/// Returns the share of an accuracy above `baseline`, that of guessing, in what is possible: 1 at best.
inline double centred(double accuracy, double baseline) { return (accuracy - baseline) / (1 - baseline); }

}  // namespace trainer::data
