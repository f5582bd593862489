#include "run/multiple_choice.h"

#include <algorithm>
#include <limits>

#include "train/scorer.h"

namespace trainer::run {
namespace {

/// The position of an ending: the index of the question, and that of the ending among the question's choices.
struct ChoiceIndex {
  size_t question, choice;
};

/// Returns the number of the ending's tokens that are predicted in a sequence of `length` rows.
int64_t scored_tokens(const Question::Choice& choice, int64_t length) {
  return std::min({choice.scored, static_cast<int64_t>(choice.tokens.size()) - 1, length});
}

/// Puts the last `length` + 1 tokens of a choice into sequence `at` of a batch. Rows that predict a token of the ending
/// have weight 1.
void put(const Question::Choice& choice, int64_t at, int64_t length, data::TokenBatch& batch) {
  const auto tokens = static_cast<int64_t>(choice.tokens.size());
  const int64_t predicted = std::min(length, tokens - 1), scored = scored_tokens(choice, length);
  const int32_t* first = choice.tokens.data() + (tokens - 1 - predicted);
  const int64_t row = at * length;
  std::copy_n(first, predicted, batch.ids.begin() + row);
  std::copy_n(first + 1, predicted, batch.targets.begin() + row);
  std::fill_n(batch.weights.begin() + row + predicted - scored, scored, 1.0f);
}

/// Returns the index of the largest value, the first one in case of a tie.
size_t best(const std::vector<double>& values) {
  return static_cast<size_t>(std::ranges::max_element(values) - values.begin());
}

/// Scores one question from the log-likelihoods of its endings and adds the result to `result`.
void judge(const Question& question, const std::vector<double>& likelihoods, const std::vector<int64_t>& scored,
           Accuracy& result) {
  std::vector<double> per_token, per_byte;
  for (size_t i = 0; i < likelihoods.size(); ++i) {
    per_token.push_back(likelihoods[i] / static_cast<double>(scored[i]));
    per_byte.push_back(likelihoods[i] / static_cast<double>(question.choices[i].bytes));
  }
  const auto answer = static_cast<size_t>(question.answer);
  const bool known = std::ranges::all_of(question.choices, [](const auto& choice) { return choice.bytes > 0; });
  result.raw += best(likelihoods) == answer;
  result.per_token += best(per_token) == answer;
  result.per_byte += !known ? std::numeric_limits<double>::quiet_NaN() : best(per_byte) == answer;
  result.loss -= per_token[answer];
}

}  // namespace

Accuracy answer_questions(train::ModelRunner& runner, const std::vector<Question>& questions,
                          const std::function<bool(int64_t, int64_t)>& progress) {
  std::vector<ChoiceIndex> choices_to_score;
  size_t longest = 2;
  std::vector<std::vector<double>> likelihoods(questions.size());
  std::vector<std::vector<int64_t>> scored(questions.size());
  for (size_t q = 0; q < questions.size(); ++q) {
    for (size_t c = 0; c < questions[q].choices.size(); ++c) {
      choices_to_score.push_back({q, c});
      longest = std::max(longest, questions[q].choices[c].tokens.size());
    }
    likelihoods[q].resize(questions[q].choices.size());
    scored[q].resize(questions[q].choices.size());
  }
  const int64_t text[] = {static_cast<int64_t>(longest) - 1};
  train::Scorer scorer(runner, text);
  const auto [each, length] = scorer.shape_for(text[0]);
  const int64_t round = each * runner.replicas();
  Accuracy result{.questions = static_cast<int64_t>(questions.size())};
  data::TokenBatch batch;
  for (size_t first = 0; first < choices_to_score.size(); first += static_cast<size_t>(round)) {
    const bool go_on = !progress || progress(static_cast<int64_t>(choices_to_score[first].question), result.questions);
    if (runner.scalars().is_true_on_any_rank(!go_on)) {
      result.interrupted = true;
      return result;
    }
    batch.resize(each, length);
    std::ranges::fill(batch.ids, 0);
    std::ranges::fill(batch.targets, 0);
    std::ranges::fill(batch.weights, 0.0f);
    for (int64_t at = 0; at < round && first + static_cast<size_t>(at) < choices_to_score.size(); ++at) {
      const ChoiceIndex& place = choices_to_score[first + static_cast<size_t>(at)];
      const Question::Choice& choice = questions[place.question].choices[place.choice];
      if (at / each == runner.replica()) put(choice, at % each, length, batch);
      scored[place.question][place.choice] = scored_tokens(choice, length);
    }
    const std::vector<double> losses = scorer.scores(batch).losses;
    for (size_t at = 0; at < losses.size() && first + at < choices_to_score.size(); ++at)
      likelihoods[choices_to_score[first + at].question][choices_to_score[first + at].choice] = -losses[at];
  }
  for (size_t q = 0; q < questions.size(); ++q) judge(questions[q], likelihoods[q], scored[q], result);
  result.truncated = std::ranges::count_if(questions, [&, most = length](const Question& question) {
    return std::ranges::any_of(question.choices, [&](const Question::Choice& choice) {
      return static_cast<int64_t>(choice.tokens.size()) - 1 > most;
    });
  });
  for (double* share : {&result.raw, &result.per_token, &result.per_byte, &result.loss})
    *share /= static_cast<double>(questions.size());
  return result;
}

}  // namespace trainer::run
