// Answers to questions compared with the likelihoods of choices computed one at a time.
#include "run/tasks.h"

#include <gtest/gtest.h>

#include <cmath>

#include "rigs/layout_cases.h"
#include "rigs/layout_checks.h"

namespace trainer::tests {
namespace {

using config::Metric;
using data::Question;

std::vector<Question> random_questions(int count) {
  const PhiloxKey key = philox_key(13, "questions");
  uint64_t at = 0;
  const auto draw = [&](uint64_t below) { return static_cast<int64_t>(philox_at(key, at++) % below); };
  std::vector<Question> questions;
  for (int q = 0; q < count; ++q) {
    Question& question = questions.emplace_back();
    std::vector<int32_t> context(static_cast<size_t>(1 + draw(7)));
    for (int32_t& token : context) token = static_cast<int32_t>(draw(kTinyVocab));
    question.choices.resize(static_cast<size_t>(2 + draw(4)));
    for (Question::Choice& choice : question.choices) {
      choice.tokens = context;
      choice.scored = 1 + draw(5);
      choice.bytes = 1 + draw(20);
      choice.characters = 1 + draw(20);
      for (int64_t i = 0; i < choice.scored; ++i) choice.tokens.push_back(static_cast<int32_t>(draw(kTinyVocab)));
    }
    question.answer = draw(question.choices.size());
  }
  // An ending longer than seq_len, and one whose context is truncated.
  Question& longest = questions.front();
  for (int i = 0; i < 30; ++i) longest.choices[0].tokens.push_back(static_cast<int32_t>(i % kTinyVocab));
  longest.choices[0].scored += 30;
  longest.choices[1].tokens.insert(longest.choices[1].tokens.begin(), 40, 3);
  return questions;
}

/// Returns the answers to questions, which are cut to the model's context window.
run::Answers answers(train::ModelRunner& runner, std::vector<Question> questions,
                     const std::function<bool(int64_t, int64_t)>& progress = {}) {
  std::vector<run::Task> tasks(1);
  tasks[0].truncated = data::truncate(questions, runner.model().seq_len());
  tasks[0].questions = std::move(questions);
  run::Respondent respondent(runner, tasks);
  return respondent.answer(tasks[0], progress);
}

/// Returns Σ log-likelihood of an ending, in its own batch, and the number of its tokens that the model can score.
std::pair<double, double> single(train::Trainer& trainer, const Question::Choice& choice) {
  const auto length = static_cast<size_t>(trainer.model().seq_len());
  std::vector<int32_t> tokens = choice.tokens;
  if (tokens.size() > length + 1) tokens.erase(tokens.begin(), tokens.end() - static_cast<ptrdiff_t>(length + 1));
  const size_t scored = std::min(static_cast<size_t>(choice.scored), tokens.size() - 1);
  data::TokenBatch batch;
  batch.resize(trainer.micro_batch(), trainer.model().seq_len());
  std::ranges::fill(batch.weights, 0.0f);
  std::ranges::fill(batch.ids, 5);
  std::ranges::fill(batch.targets, 5);
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    batch.ids[i] = tokens[i];
    batch.targets[i] = tokens[i + 1];
    batch.weights[i] = i + 1 + scored >= tokens.size() ? 1.0f : 0.0f;
  }
  return {-trainer.loss_sum(batch), static_cast<double>(scored)};
}

TEST(Tasks, IsJudgedByTheLikelihoodOfEachEnding) {
  config::Config c = tiny_config();
  c.model.seq_len = 20;
  Tiny run(c, DType::f64, 2);
  for (int64_t n = 1; n <= 3; ++n) run.step(n, 1e-2);
  const std::vector<Question> questions = random_questions(41);
  std::array<double, config::kMetrics> expected{};
  double loss = 0;
  for (const Question& question : questions) {
    size_t best[config::kMetrics] = {};
    double highest[config::kMetrics];
    std::ranges::fill(highest, -INFINITY);
    for (size_t i = 0; i < question.choices.size(); ++i) {
      const auto [likelihood, tokens] = single(run.trainer, question.choices[i]);
      const double lengths[] = {1, static_cast<double>(question.choices[i].characters),
                                static_cast<double>(question.choices[i].bytes), tokens, tokens};
      for (size_t rule = 0; rule < config::kMetrics; ++rule)
        if (likelihood / lengths[rule] > highest[rule]) highest[rule] = likelihood / lengths[rule], best[rule] = i;
      if (static_cast<int64_t>(i) == question.answer) loss -= likelihood / tokens / 41;
    }
    for (size_t rule = 0; rule < config::kMetrics; ++rule)
      expected[rule] += (best[rule] == static_cast<size_t>(question.answer)) / 41.0;
  }
  ASSERT_FALSE(expected[0] == expected[1] && expected[0] == expected[2]);  // else the rules are indistinguishable
  const run::Answers found = answers(run.trainer, questions);
  for (size_t rule = 0; rule < config::kMetrics; ++rule) EXPECT_NEAR(found.accuracy[rule], expected[rule], 1e-12);
  EXPECT_NEAR(found.loss, loss, 1e-12 * loss);
}

void expect_same_on_ranks(const config::Config& c, const std::vector<Question>& questions) {
  const auto on = [&](const config::Config& layout) {
    run::Answers found;
    comm::run_on_threads(ranks_of(layout), {.timeout_s = 60}, [&](comm::World& world) {
      Tiny run(&world, layout, DType::f64, 1);
      const run::Answers mine = answers(run.trainer, questions);
      EXPECT_GT(mine.accuracy[0], 0);
      if (world.first()) found = mine;
    });
    return found;
  };
  const run::Answers one = on(on_one_rank(c)), many = on(c);
  EXPECT_EQ(one.accuracy, many.accuracy);
  EXPECT_NEAR(one.loss, many.loss, 1e-11 * one.loss);
}

TEST(Tasks, RanksFindWhatOneFinds) {
  for (const int64_t micro_batch : {1, 3}) {
    config::Config c = configure(MegatronLayout{.tensor = 2, .data = 2, .micro_batch = micro_batch});
    c.train.global_batch = 12;
    expect_same_on_ranks(c, random_questions(23));
  }
}

// Without the first question, whose endings are long, two ranks answer in batches of half of the length: segments of 3
// tokens.
TEST(Tasks, RanksThatShareSequencesFindWhatOneFinds) {
  const std::vector<Question> all = random_questions(23), some(all.begin() + 1, all.end());
  for (const LayoutCase& one :
       layouts_named({"Shards4Data1LlamaShared4Gather", "Shards4Data1LlamaShared4Ring",
                      "Shards4Data2Gpt2Shared4Heads2Ring", "Tensor2Data1SpEach2LlamaShared2Gather"})) {
    SCOPED_TRACE(one.name);
    expect_same_on_ranks(one.config, all);
    expect_same_on_ranks(one.config, some);
  }
}

TEST(Tasks, StopsOnRequest) {
  Tiny run(tiny_config(), DType::f32, 1);
  int64_t calls = 0;
  EXPECT_TRUE(answers(run.trainer, random_questions(30), [&](int64_t, int64_t all) {
                EXPECT_EQ(all, 30);
                return ++calls < 3;
              }).interrupted);
  EXPECT_EQ(calls, 3);
}

// llm.c's files do not contain the text of endings.
TEST(Tasks, WithoutBytesNothingIsCountedPerByte) {
  Tiny run(tiny_config(), DType::f32, 1);
  std::vector<Question> questions = random_questions(3);
  for (Question& question : questions)
    for (Question::Choice& choice : question.choices) choice.bytes = choice.characters = 0;
  const run::Answers found = answers(run.trainer, questions);
  EXPECT_TRUE(std::isnan(found.accuracy[1]) && std::isnan(found.accuracy[2]) && !std::isnan(found.accuracy[3]));
}

}  // namespace
}  // namespace trainer::tests
