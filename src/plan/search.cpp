#include "plan/search.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace trainer::plan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kEqual = 1e-12;  // costs that differ by this share are equal
constexpr int kParts = 256;       // of the memory cap
constexpr double kExhaustive = 1e6;

size_t at(int i) { return static_cast<size_t>(i); }

double cost_of(const SearchProblem::Edge& edge, const SearchProblem& problem, int choice_a, int choice_b) {
  return edge.costs[at(choice_a) * at(problem.choices(edge.b)) + at(choice_b)];
}

/// True if the first assignment is better: cheaper or, at equal cost, lexicographically smaller.
bool is_better(const Assignment& a, const Assignment& b) {
  if (!a.found() || !b.found()) return a.found() && !b.found();
  const double slack = kEqual * std::max(std::abs(a.cost), std::abs(b.cost));
  if (std::abs(a.cost - b.cost) > slack) return a.cost < b.cost;
  return a.choices < b.choices;
}

/// Changes pairs of variables as long as that lowers the cost and fits.
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

/// Dynamic programming over a chain of variables, from its end. A state is a choice and how many of `steps` equal parts
/// of the memory above the minimum are left; 0: memory is ignored. Memory of choices is rounded up to whole parts.
Assignment dp_over_chain(const SearchProblem& problem, int conditioned, int steps) {
  const int n = problem.variables();
  std::vector<const SearchProblem::Edge*> links(at(n), nullptr);  // to the variable before, in a chain
  for (const SearchProblem::Edge& edge : problem.edges) {
    if (conditioned >= 0 && (edge.a == conditioned || edge.b == conditioned)) continue;
    TRAINER_CHECK(edge.b == edge.a + 1, "an edge from variable {} to {} is not of a chain", edge.a, edge.b);
    links[at(edge.b)] = &edge;
  }
  double left = problem.cap;
  std::vector<double> least(at(n), 0);
  for (int i = 0; i < n && steps > 0; ++i) {
    least[at(i)] = *std::ranges::min_element(problem.memory[at(i)]);
    left -= least[at(i)];
  }
  if (left < 0) return {};
  const auto parts = [&](int i, int choice) {
    if (steps == 0) return 0;
    const double share = (problem.memory[at(i)][at(choice)] - least[at(i)]) / left;
    return share > 1 ? steps + 1 : static_cast<int>(std::ceil(share * steps - 1e-9));
  };

  const size_t width = at(steps) + 1;
  Assignment best;
  for (int fixed = 0; fixed < (conditioned < 0 ? 1 : problem.choices(conditioned)); ++fixed) {
    std::vector<std::vector<double>> node = problem.nodes;
    for (const SearchProblem::Edge& edge : problem.edges) {
      if (conditioned < 0 || (edge.a != conditioned && edge.b != conditioned)) continue;
      const int other = edge.a == conditioned ? edge.b : edge.a;
      for (int choice = 0; choice < problem.choices(other); ++choice)
        node[at(other)][at(choice)] +=
            edge.a == conditioned ? cost_of(edge, problem, fixed, choice) : cost_of(edge, problem, choice, fixed);
    }
    std::vector<double> after(width, 0);             // cost of the rest, [choice of the next variable][parts left]
    std::vector<std::vector<int>> taken(at(n) + 1);  // the next variable's choice, [choice][parts left]
    int choices_after = 1;
    for (int i = n - 1; i >= 0; --i) {
      const SearchProblem::Edge* link = i + 1 < n ? links[at(i + 1)] : nullptr;
      std::vector<double> now(at(problem.choices(i)) * width, kInfinity);
      std::vector<int>& next = taken[at(i)];
      next.assign(now.size(), 0);
      for (int choice = 0; choice < problem.choices(i); ++choice) {
        if ((i == conditioned && choice != fixed) || parts(i, choice) > steps) continue;
        const size_t used = at(parts(i, choice)), row = at(choice) * width;
        for (int d = 0; d < choices_after; ++d) {
          const double edge = node[at(i)][at(choice)] + (link == nullptr ? 0 : cost_of(*link, problem, choice, d));
          for (size_t m = used; m < width; ++m) {
            const double total = edge + after[at(d) * width + m - used];
            if (total >= now[row + m]) continue;
            now[row + m] = total;
            next[row + m] = d;
          }
        }
      }
      after = std::move(now);
      choices_after = problem.choices(i);
    }
    size_t m = width - 1;
    int choice = 0;
    for (int c = 1; c < choices_after; ++c)
      if (after[at(c) * width + m] < after[at(choice) * width + m]) choice = c;
    if (std::isinf(after[at(choice) * width + m])) continue;
    std::vector<int> choices(at(n), 0);
    for (int i = 0; i < n; ++i) {
      choices[at(i)] = choice;
      choice = taken[at(i)][at(choice) * width + m];
      m -= at(parts(i, choices[at(i)]));
    }
    const Assignment found = evaluate(problem, std::move(choices));
    if (is_better(found, best)) best = found;
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

Assignment chain_dp(const SearchProblem& problem, int conditioned) { return dp_over_chain(problem, conditioned, 0); }

Assignment chain_dp_within(const SearchProblem& problem, int conditioned) {
  const Assignment free = chain_dp(problem, conditioned);
  if (!free.found() || free.memory <= problem.cap) return free;
  return polish(problem, dp_over_chain(problem, conditioned, kParts));  // uses memory lost to rounding
}

Assignment search(const SearchProblem& problem, int conditioned) {
  double assignments = 1;
  for (int i = 0; i < problem.variables(); ++i) assignments *= problem.choices(i);
  return assignments <= kExhaustive ? exhaustive(problem) : chain_dp_within(problem, conditioned);
}

}  // namespace trainer::plan
