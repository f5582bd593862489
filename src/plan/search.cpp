#include "plan/search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace trainer::plan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kEqual = 1e-12;  // costs whose relative difference is at most this count as equal
constexpr int kParts = 256;       // number of steps into which the memory cap is divided
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

/// Sets cost and memory of an assignment.
void sum(const SearchProblem& problem, Assignment& of) {
  of.cost = of.memory = 0;
  for (int i = 0; i < problem.variables(); ++i) {
    const size_t choice = at(of.choices[at(i)]);
    of.cost += problem.nodes[at(i)][choice];
    if (!problem.memory.empty()) of.memory += problem.memory[at(i)][choice];
  }
  for (const SearchProblem::Edge& edge : problem.edges)
    of.cost += cost_of(edge, problem, of.choices[at(edge.a)], of.choices[at(edge.b)]);
}

/// Changes the choices of pairs of variables as long as this lowers the cost within the cap.
Assignment polish(const SearchProblem& problem, Assignment best) {
  const auto memory_with = [&](int i, const Assignment& of) { return problem.memory[at(i)][at(of.choices[at(i)])]; };
  for (bool moved = best.found(); moved;) {
    moved = false;
    for (int i = 0; i < problem.variables(); ++i)
      for (int j = i + 1; j < problem.variables(); ++j) {
        Assignment trial = best;
        const double spare =  // memory left for the two variables
            problem.cap * (1 + kEqual) - best.memory + memory_with(i, best) + memory_with(j, best);
        for (trial.choices[at(i)] = 0; trial.choices[at(i)] < problem.choices(i); ++trial.choices[at(i)])
          for (trial.choices[at(j)] = 0; trial.choices[at(j)] < problem.choices(j); ++trial.choices[at(j)]) {
            if (memory_with(i, trial) + memory_with(j, trial) > spare) continue;
            sum(problem, trial);
            if (trial.memory > problem.cap || !is_better(trial, best)) continue;
            best = trial;
            moved = true;
          }
      }
  }
  return best;
}

/// Dynamic programming over a chain of variables, from its end. A state is a choice and the number of parts of memory
/// left, where the memory above the minimum is divided into `steps` equal parts (0: memory is ignored). The memory of a
/// choice is rounded up to whole parts. The conditioned variable, if any, takes its choice `fixed`.
Assignment dp_over_chain(const SearchProblem& problem, int conditioned, int fixed, int steps) {
  const int n = problem.variables();
  std::vector<const SearchProblem::Edge*> links(at(n), nullptr);  // edge to the previous variable of the chain
  std::vector<std::vector<double>> node = problem.nodes;
  for (const SearchProblem::Edge& edge : problem.edges) {
    if (conditioned < 0 || (edge.a != conditioned && edge.b != conditioned)) {
      TRAINER_CHECK(edge.b == edge.a + 1, "the edge from variable {} to {} is not part of a chain", edge.a, edge.b);
      links[at(edge.b)] = &edge;
      continue;
    }
    const int other = edge.a == conditioned ? edge.b : edge.a;
    for (int choice = 0; choice < problem.choices(other); ++choice)
      node[at(other)][at(choice)] +=
          edge.a == conditioned ? cost_of(edge, problem, fixed, choice) : cost_of(edge, problem, choice, fixed);
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
  // Cost of variable i and those after it, [choice][parts left]. The last entry has no variable.
  std::vector<std::vector<double>> rest(at(n) + 1);
  rest[at(n)].assign(width, 0);
  const auto link_of = [&](int i) { return i + 1 < n ? links[at(i + 1)] : nullptr; };
  const auto choices_after = [&](int i) { return i + 1 < n ? problem.choices(i + 1) : 1; };
  const auto step = [&](int i, int choice, int d) {
    return node[at(i)][at(choice)] + (link_of(i) == nullptr ? 0 : cost_of(*link_of(i), problem, choice, d));
  };
  for (int i = n - 1; i >= 0; --i) {
    const std::vector<double>& after = rest[at(i + 1)];
    std::vector<double> cheapest(after.begin(), after.begin() + static_cast<std::ptrdiff_t>(width));
    const bool linked = link_of(i) != nullptr;  // otherwise later variables do not depend on the choice
    for (int d = 1; !linked && d < choices_after(i); ++d)
      for (size_t m = 0; m < width; ++m) cheapest[m] = std::min(cheapest[m], after[at(d) * width + m]);
    rest[at(i)].assign(at(problem.choices(i)) * width, kInfinity);
    for (int choice = 0; choice < problem.choices(i); ++choice) {
      if ((i == conditioned && choice != fixed) || parts(i, choice) > steps) continue;
      const size_t used = at(parts(i, choice));
      double* const now = &rest[at(i)][at(choice) * width + used];
      for (int d = 0; d < (linked ? choices_after(i) : 1); ++d) {
        const double cost = step(i, choice, d);
        const double* const next = linked ? &after[at(d) * width] : cheapest.data();
        for (size_t m = 0; m < width - used; ++m) {
          const double total = cost + next[m];
          now[m] = total < now[m] ? total : now[m];
        }
      }
    }
  }

  size_t m = width - 1;
  std::vector<int> choices;
  for (int i = 0; i < n; ++i) {
    int best = 0;
    double lowest = kInfinity;
    for (int choice = 0; choice < problem.choices(i); ++choice) {
      const double total = (i == 0 ? 0 : step(i - 1, choices.back(), choice)) + rest[at(i)][at(choice) * width + m];
      if (total >= lowest) continue;
      lowest = total;
      best = choice;
    }
    if (std::isinf(lowest)) return {};
    choices.push_back(best);
    m -= at(parts(i, best));
  }
  return evaluate(problem, std::move(choices));
}

/// Returns the cheapest assignment for each choice of the conditioned variable, ignoring memory.
std::vector<Assignment> free_chains(const SearchProblem& problem, int conditioned) {
  std::vector<Assignment> chains;
  for (int fixed = 0; fixed < (conditioned < 0 ? 1 : problem.choices(conditioned)); ++fixed)
    chains.push_back(dp_over_chain(problem, conditioned, fixed, 0));
  return chains;
}

Assignment best_of(const std::vector<Assignment>& all) {
  Assignment best;
  for (const Assignment& one : all)
    if (is_better(one, best)) best = one;
  return best;
}

}  // namespace

Assignment evaluate(const SearchProblem& problem, std::vector<int> choices) {
  Assignment result{.choices = std::move(choices)};
  sum(problem, result);
  return result;
}

Assignment exhaustive(const SearchProblem& problem) {
  Assignment best, now{.choices = std::vector<int>(at(problem.variables()), 0)};
  for (;;) {
    sum(problem, now);
    if (now.memory <= problem.cap && is_better(now, best)) best = now;
    int i = problem.variables();
    while (i > 0 && ++now.choices[at(i - 1)] == problem.choices(i - 1)) now.choices[at(--i)] = 0;
    if (i == 0) return best;
  }
}

Assignment chain_dp_within(const SearchProblem& problem, int conditioned, std::vector<Assignment>* known) {
  std::vector<Assignment> own, &free = known == nullptr ? own : *known;
  if (free.empty()) free = free_chains(problem, conditioned);
  for (Assignment& chain : free)
    if (chain.found()) sum(problem, chain);  // the memory may have changed
  Assignment best = best_of(free);
  if (!best.found() || best.memory <= problem.cap) return best;
  best = {};
  std::vector<int> order(free.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int fixed) { return free[at(fixed)].cost; });
  for (const int fixed : order) {
    const Assignment& cheapest = free[at(fixed)];
    if (!cheapest.found() || cheapest.cost * (1 - kEqual) > best.cost)
      break;  // a memory cap can only increase the cost
    const Assignment found =
        cheapest.memory <= problem.cap ? cheapest : dp_over_chain(problem, conditioned, fixed, kParts);
    if (is_better(found, best)) best = found;
  }
  return polish(problem, best);  // uses the memory that rounding left unused
}

Assignment search(const SearchProblem& problem, int conditioned, std::vector<Assignment>* free) {
  double assignments = 1;
  for (int i = 0; i < problem.variables(); ++i) assignments *= problem.choices(i);
  return assignments <= kExhaustive ? exhaustive(problem) : chain_dp_within(problem, conditioned, free);
}

}  // namespace trainer::plan
