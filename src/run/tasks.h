#pragma once
// Tasks: a model's answers to multiple-choice and prediction questions, during training and of a checkpoint.
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "config/config.h"
#include "data/tasks.h"
#include "report/events.h"
#include "train/scorer.h"

namespace trainer::run {

/// A task with its questions, cut to the model's context window.
struct Task {
  config::Task settings;
  std::vector<data::Question> questions;
  int64_t truncated = 0;  // questions with a longer text
  std::string hash;       // identifies questions and metric: scores with different hashes are not comparable
};

/// Reads the tasks on every rank, and requires that all ranks find the same. Throws on all ranks: Code::data, naming
/// file and line. Collective.
std::vector<Task> open_tasks(comm::World& world, const std::vector<config::Task>& tasks,
                             const data::Tokenizer* tokenizer, int64_t vocab, int64_t seq_len);

/// The answers to a task's questions.
struct Answers {
  /// Fractions of questions answered correctly by config::Metric (data::chosen()); NaN where the file has no text.
  std::array<double, config::kMetrics> accuracy{};
  double loss = 0;           // nats per token of the right choices
  bool interrupted = false;  // stopped before the last question; the other members are then meaningless
};

class Respondent {
 public:
  /// Records the programs for the tasks' texts; see train::Scorer. Both arguments must outlive this object.
  Respondent(train::ModelRunner& runner, const std::vector<Task>& tasks);

  /// Answers the questions of one of the tasks, which are divided among the replicas. `progress(done, questions)` is
  /// called between batches and returns false to stop. Collective; every rank returns the result.
  Answers answer(const Task& task, const std::function<bool(int64_t done, int64_t questions)>& progress);

 private:
  train::ModelRunner& runner_;
  train::Scorer scorer_;
};

/// Answers all tasks. Returns nothing if `progress` stopped it.
std::optional<report::TasksReport> answer_tasks(
    Respondent& respondent, const std::vector<Task>& tasks,
    const std::function<bool(const std::string& name, int64_t done, int64_t questions)>& progress);

}  // namespace trainer::run
