#include "plan/search.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace trainer::plan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kEqual = 1e-12;  // costs that differ by this share are equal
constexpr int kMostMultipliers = 20;
constexpr double kExhaustive = 1e6;

size_t at(int i) { return static_cast<size_t>(i); }

double cost_of(const SearchProblem::Edge& edge, const SearchProblem& problem, int choice_a, int choice_b) {
  return edge.costs[at(choice_a) * at(problem.choices(edge.b)) + at(choice_b)];
}

/// Says which of two assignments is better: the cheaper one, of equal ones the lexicographically smaller.
bool is_better(const Assignment& a, const Assignment& b) {
  if (!a.found() || !b.found()) return a.found() && !b.found();
  const double slack = kEqual * std::max(std::abs(a.cost), std::abs(b.cost));
  if (std::abs(a.cost - b.cost) > slack) return a.cost < b.cost;
  return a.choices < b.choices;
}

/// Moves pairs of variables, as long as that helps and fits.
Assignment polish(const SearchProblem& problem, Assignment best) {
  for (bool moved = best.found(); moved;) {
    moved = false;
    for (int i = 0; i < problem.variables(); ++i)
      for (int j = i + 1; j < problem.variables(); ++j) {
        std::vector<int> trial = best.choices;
        for (trial[at(i)] = 0; trial[at(i)] < problem.choices(i); ++trial[at(i)])
          for (trial[at(j)] = 0; trial[at(j)] < problem.choices(j); ++trial[at(j)]) {
            const Assignment other = evaluate(problem, trial);
            if (other.memory > problem.cap || !is_better(other, best)) continue;
            best = other;
            moved = true;
          }
      }
  }
  return best;
}

}  // namespace

Assignment evaluate(const SearchProblem& problem, std::vector<int> choices) {
  Assignment result{.choices = std::move(choices), .cost = 0};
  for (int i = 0; i < problem.variables(); ++i) {
    result.cost += problem.nodes[at(i)][at(result.choices[at(i)])];
    if (!problem.memory.empty()) result.memory += problem.memory[at(i)][at(result.choices[at(i)])];
  }
  for (const SearchProblem::Edge& edge : problem.edges)
    result.cost += cost_of(edge, problem, result.choices[at(edge.a)], result.choices[at(edge.b)]);
  return result;
}

Assignment exhaustive(const SearchProblem& problem) {
  Assignment best;
  std::vector<int> choices(at(problem.variables()), 0);
  for (;;) {
    const Assignment now = evaluate(problem, choices);
    if (now.memory <= problem.cap && is_better(now, best)) best = now;
    int i = problem.variables();
    while (i > 0 && ++choices[at(i - 1)] == problem.choices(i - 1)) choices[at(--i)] = 0;
    if (i == 0) return best;
  }
}

Assignment chain_dp(const SearchProblem& problem, int conditioned) {
  const int n = problem.variables();
  std::vector<const SearchProblem::Edge*> links(at(n), nullptr);  // to the variable before, in a chain
  for (const SearchProblem::Edge& edge : problem.edges) {
    if (conditioned >= 0 && (edge.a == conditioned || edge.b == conditioned)) continue;
    TRAINER_CHECK(edge.b == edge.a + 1, "an edge from variable {} to {} is not of a chain", edge.a, edge.b);
    links[at(edge.b)] = &edge;
  }
  Assignment best;
  for (int fixed = 0; fixed < (conditioned < 0 ? 1 : problem.choices(conditioned)); ++fixed) {
    std::vector<std::vector<double>> cost = problem.nodes;
    std::vector<std::vector<int>> taken(at(n));  // by the choice of the variable before
    for (const SearchProblem::Edge& edge : problem.edges) {
      if (conditioned < 0 || (edge.a != conditioned && edge.b != conditioned)) continue;
      const int other = edge.a == conditioned ? edge.b : edge.a;
      for (int choice = 0; choice < problem.choices(other); ++choice)
        cost[at(other)][at(choice)] +=
            edge.a == conditioned ? cost_of(edge, problem, fixed, choice) : cost_of(edge, problem, choice, fixed);
    }
    for (int child = n - 1; child > 0; --child) {
      if (links[at(child)] == nullptr) continue;
      taken[at(child)].resize(at(problem.choices(child - 1)));
      for (int above = 0; above < problem.choices(child - 1); ++above) {
        double least = kInfinity;
        for (int choice = 0; choice < problem.choices(child); ++choice) {
          const double total = cost[at(child)][at(choice)] + cost_of(*links[at(child)], problem, above, choice);
          if (total >= least) continue;
          least = total;
          taken[at(child)][at(above)] = choice;
        }
        cost[at(child - 1)][at(above)] += least;
      }
    }
    std::vector<int> choices(at(n), 0);
    for (int i = 0; i < n; ++i) {
      const std::vector<double>& costs = cost[at(i)];
      choices[at(i)] = i == conditioned          ? fixed
                       : links[at(i)] != nullptr ? taken[at(i)][at(choices[at(i - 1)])]
                                                 : static_cast<int>(std::ranges::min_element(costs) - costs.begin());
    }
    const Assignment now = evaluate(problem, std::move(choices));
    if (is_better(now, best)) best = now;
  }
  return best;
}

Assignment chain_dp_within(const SearchProblem& problem, int conditioned) {
  const Assignment free = chain_dp(problem, conditioned);
  if (!free.found() || free.memory <= problem.cap) return free;
  // The least multiplier with which the cheapest assignment fits is found by bisection on a logarithmic scale.
  Assignment best;
  const auto fits_with = [&](double multiplier) {
    SearchProblem relaxed = problem;
    for (size_t i = 0; i < relaxed.nodes.size(); ++i)
      for (size_t choice = 0; choice < relaxed.nodes[i].size(); ++choice)
        relaxed.nodes[i][choice] += multiplier * problem.memory[i][choice];
    const Assignment now = evaluate(problem, chain_dp(relaxed, conditioned).choices);
    if (now.memory <= problem.cap && is_better(now, best)) best = now;
    return now.memory <= problem.cap;
  };
  double low = 1e-6 * free.cost / free.memory, high = low;
  for (int raised = 0; !fits_with(high); ++raised) {
    if (raised == kMostMultipliers) return {};
    high *= 32;
  }
  for (int round = 0; round < kMostMultipliers && high / low > 1 + 1e-3; ++round) {
    const double middle = std::sqrt(low * high);
    (fits_with(middle) ? high : low) = middle;
  }
  return polish(problem, std::move(best));
}

Assignment search(const SearchProblem& problem, int conditioned) {
  double assignments = 1;
  for (int i = 0; i < problem.variables(); ++i) assignments *= problem.choices(i);
  return assignments <= kExhaustive ? exhaustive(problem) : chain_dp_within(problem, conditioned);
}

}  // namespace trainer::plan
