#include "run/tasks.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/checksum.h"
#include "base/log.h"
#include "comm/agreement.h"

namespace trainer::run {
namespace {

using config::Metric;
using data::Question;

/// Returns the number of rows that a text needs.
int64_t rows_of(const Question::Choice& choice) { return std::ssize(choice.tokens) - 1; }

std::vector<int64_t> lengths_of(const std::vector<Task>& tasks) {
  std::vector<int64_t> lengths;
  for (const Task& task : tasks)
    for (const Question& question : task.questions)
      for (const Question::Choice& choice : question.choices) lengths.push_back(rows_of(choice));
  return lengths;
}

/// Puts a choice into sequence `at` of a batch. Rows that predict a scored token have weight 1.
void put(const Question::Choice& choice, int64_t at, data::TokenBatch& batch) {
  const int64_t rows = rows_of(choice), row = at * batch.seq_len;
  std::copy_n(choice.tokens.begin(), rows, batch.ids.begin() + row);
  std::copy_n(choice.tokens.begin() + 1, rows, batch.targets.begin() + row);
  std::fill_n(batch.weights.begin() + row + rows - choice.scored, choice.scored, 1.0f);
}

/// The likelihoods of a question's choices.
struct Said {
  std::vector<double> likelihoods;
  bool greedy = false;  // the last choice is the most likely text; counts only if there is no other choice
};

/// Adds a question's right answers.
void judge(const Question& question, const Said& said, Answers& sum) {
  const auto right = static_cast<size_t>(question.answer);
  const bool known = std::ranges::all_of(question.choices, [](const auto& choice) { return choice.bytes > 0; });
  for (size_t metric = 0; metric < sum.accuracy.size(); ++metric) {
    const auto by = static_cast<Metric>(metric);
    if (question.choices.size() == 1)
      sum.accuracy[metric] += said.greedy;
    else if (!known && (by == Metric::acc_norm || by == Metric::acc_bytes))
      sum.accuracy[metric] = std::numeric_limits<double>::quiet_NaN();
    else
      sum.accuracy[metric] += data::chosen(by, question, said.likelihoods) == right;
  }
  sum.loss -= said.likelihoods[right] / static_cast<double>(question.choices[right].scored);
}

}  // namespace

std::vector<Task> open_tasks(comm::World& world, const std::vector<config::Task>& tasks,
                             const data::Tokenizer* tokenizer, int64_t vocab, int64_t seq_len) {
  std::vector<Task> open;
  if (tasks.empty()) return open;
  comm::Facts facts;
  for (const config::Task& settings : tasks) {
    Task& task = open.emplace_back();
    task.settings = settings;
    const std::string name = settings.name.empty() ? "" : format("task {}: ", settings.name);
    world.control().run_on_all_ranks([&] {
      task.questions = data::read_questions(settings, tokenizer, vocab);
      task.truncated = data::truncate(task.questions, seq_len);
      if (!settings.name.empty() && settings.metric != Metric::acc && settings.metric != Metric::acc_tokens &&
          task.questions.front().choices.front().bytes == 0)
        throw Error(Code::data, format("task {}: metric {} needs text, but {} has tokens; use acc or acc_tokens",
                                       settings.name, config::name_of(settings.metric), settings.files.front()));
    });
    task.hash =
        to_string(checksum_of(format("{} {}", data::hash_of(task.questions), config::name_of(settings.metric))));
    facts.emplace_back(name + "the number of questions", format("{}", task.questions.size()));
    facts.emplace_back(name + "the hash of the questions", task.hash);
    if (world.first() && !settings.name.empty())
      log::info(
          "task {}: {} questions{}, hash {}", settings.name, task.questions.size(),
          task.truncated == 0 ? "" : format(" ({} cut at the beginning: longer than model.seq_len)", task.truncated),
          task.hash);
  }
  comm::require_same(world, facts, Code::data,
                     "all ranks must find the same files: start them in the same folder, or copy the files to every "
                     "host again");
  return open;
}

Respondent::Respondent(train::ModelRunner& runner, const std::vector<Task>& tasks)
    : runner_(runner), scorer_(runner, lengths_of(tasks)) {}

Answers Respondent::answer(const Task& task, const std::function<bool(int64_t, int64_t)>& progress) {
  const int64_t questions = std::ssize(task.questions);
  std::vector<Said> said(task.questions.size());
  /// A text to score: the choice of a question.
  struct Text {
    size_t question, choice;
  };
  std::map<int64_t, std::vector<Text>> texts;  // by the length of their batches
  int64_t all = 0, done = 0;
  for (size_t q = 0; q < said.size(); ++q) {
    const std::vector<Question::Choice>& choices = task.questions[q].choices;
    said[q].likelihoods.resize(choices.size());
    for (size_t c = 0; c < choices.size(); ++c, ++all)
      texts[scorer_.shape_for(rows_of(choices[c])).length].push_back({q, c});
  }
  Answers result;
  data::TokenBatch batch;
  for (const auto& [length, list] : texts) {
    const int64_t each = scorer_.shape_for(length).sequences, round = each * runner_.replicas();
    for (int64_t first = 0; first < std::ssize(list); first += round) {
      const int64_t count = std::min(round, std::ssize(list) - first);
      const bool go_on = !progress || progress(done * questions / all, questions);
      if (runner_.scalars().is_true_on_any_rank(!go_on)) {
        result.interrupted = true;
        return result;
      }
      batch.resize(each, length);
      std::ranges::fill(batch.ids, 0);
      std::ranges::fill(batch.targets, 0);
      std::ranges::fill(batch.weights, 0.0f);
      for (int64_t at = runner_.replica() * each; at < std::min(count, (runner_.replica() + 1) * each); ++at) {
        const Text& text = list[static_cast<size_t>(first + at)];
        put(task.questions[text.question].choices[text.choice], at % each, batch);
      }
      const train::Scorer::Scores scores = scorer_.scores(batch);
      for (int64_t at = 0; at < count; ++at) {
        const Text& text = list[static_cast<size_t>(first + at)];
        said[text.question].likelihoods[text.choice] = -scores.losses[static_cast<size_t>(at)];
        said[text.question].greedy = scores.greedy[static_cast<size_t>(at)];
      }
      done += count;
    }
  }
  for (size_t q = 0; q < said.size(); ++q) judge(task.questions[q], said[q], result);
  for (double& share : result.accuracy) share /= static_cast<double>(questions);
  result.loss /= static_cast<double>(questions);
  return result;
}

std::optional<report::TasksReport> answer_tasks(
    Respondent& respondent, const std::vector<Task>& tasks,
    const std::function<bool(const std::string&, int64_t, int64_t)>& progress) {
  report::TasksReport report;
  double core = 0;
  int64_t cores = 0;
  for (const Task& task : tasks) {
    const config::Task& settings = task.settings;
    const Answers answers = respondent.answer(
        task, [&](int64_t done, int64_t questions) { return progress(settings.name, done, questions); });
    if (answers.interrupted) return std::nullopt;
    const double score = answers.accuracy[static_cast<size_t>(settings.metric)];
    report.tasks.push_back({.name = settings.name,
                            .score = score,
                            .centred = data::centred(score, settings.baseline),
                            .loss = answers.loss,
                            .questions = std::ssize(task.questions)});
    if (settings.metric != Metric::core) continue;
    core += report.tasks.back().centred;
    ++cores;
  }
  if (cores > 0) report.core = core / static_cast<double>(cores);
  return report;
}

}  // namespace trainer::run
