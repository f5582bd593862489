#include "plan/search.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "base/error.h"

namespace trainer::plan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kGain = 1e-12;  // moves must lower the cost by this share of it
constexpr int kMostSweeps = 64, kMostPenalties = 20, kMostAlternating = 81;
constexpr double kExhaustive = 1e6;

size_t at(int i) { return static_cast<size_t>(i); }

double cost_of(const SearchProblem::Edge& edge, const SearchProblem& problem, int choice_a, int choice_b) {
  return edge.costs[at(choice_a) * at(problem.choices(edge.b)) + at(choice_b)];
}

/// Says which of two assignments is better: the cheaper one, of equal ones the lexicographically smaller.
bool is_better(const Assignment& a, const Assignment& b) {
  if (!a.found() || !b.found()) return a.found() && !b.found();
  const double slack = kGain * std::max(std::abs(a.cost), std::abs(b.cost));
  if (std::abs(a.cost - b.cost) > slack) return a.cost < b.cost;
  return a.choices < b.choices;
}

/// Descent holds one assignment and moves it.
class Descent {
 public:
  Descent(const SearchProblem& problem, std::vector<int> start, double penalty)
      : problem_(problem), penalty_(penalty), now_(evaluate(problem, std::move(start))) {
    edges_of_.resize(at(problem.variables()));
    for (const SearchProblem::Edge& edge : problem.edges) {
      edges_of_[at(edge.a)].push_back(&edge);
      edges_of_[at(edge.b)].push_back(&edge);
    }
  }

  Assignment run(bool pairs) {
    for (bool moved = true; moved && now_.sweeps < kMostSweeps; ++now_.sweeps) {
      moved = false;
      for (int i = 0; i < problem_.variables(); ++i) moved |= move_one(i);
      if (!pairs) continue;
      for (const SearchProblem::Edge& edge : problem_.edges) moved |= move_pair(edge);
    }
    const int sweeps = now_.sweeps;
    now_ = evaluate(problem_, std::move(now_.choices));
    now_.sweeps = sweeps;
    return now_;
  }

 private:
  double memory_of(int variable, int choice) const {
    return problem_.memory.empty() ? 0 : problem_.memory[at(variable)][at(choice)];
  }
  double penalty_of(double memory) const { return penalty_ * std::max(0.0, memory - problem_.cap); }

  /// Returns the cost of a variable's node and edges, without the edge `but`.
  double local(int variable, int choice, const SearchProblem::Edge* but = nullptr) const {
    double sum = problem_.nodes[at(variable)][at(choice)];
    for (const SearchProblem::Edge* edge : edges_of_[at(variable)]) {
      if (edge == but) continue;
      sum += edge->a == variable ? cost_of(*edge, problem_, choice, now_.choices[at(edge->b)])
                                 : cost_of(*edge, problem_, now_.choices[at(edge->a)], choice);
    }
    return sum;
  }

  bool accept(double before, double best) const {
    if (std::isinf(before)) return !std::isinf(best);
    return best < before - kGain * std::abs(before);
  }

  bool move_one(int i) {
    const int old = now_.choices[at(i)];
    const double others = now_.memory - memory_of(i, old);
    const auto value = [&](int choice) { return local(i, choice) + penalty_of(others + memory_of(i, choice)); };
    const double before = value(old);
    double best = kInfinity;
    int taken = old;
    for (int choice = 0; choice < problem_.choices(i); ++choice)
      if (const double cost = value(choice); cost < best) {
        best = cost;
        taken = choice;
      }
    if (!accept(before, best)) return false;
    now_.choices[at(i)] = taken;
    now_.memory = others + memory_of(i, taken);
    return true;
  }

  bool move_pair(const SearchProblem::Edge& edge) {
    int& a = now_.choices[at(edge.a)];
    int& b = now_.choices[at(edge.b)];
    const double others = now_.memory - memory_of(edge.a, a) - memory_of(edge.b, b);
    std::vector<double> of_a(at(problem_.choices(edge.a))), of_b(at(problem_.choices(edge.b)));
    for (int x = 0; x < problem_.choices(edge.a); ++x) of_a[at(x)] = local(edge.a, x, &edge);
    for (int y = 0; y < problem_.choices(edge.b); ++y) of_b[at(y)] = local(edge.b, y, &edge);
    const auto value = [&](int x, int y) {
      return of_a[at(x)] + of_b[at(y)] + cost_of(edge, problem_, x, y) +
             penalty_of(others + memory_of(edge.a, x) + memory_of(edge.b, y));
    };
    const double before = value(a, b);
    double best = kInfinity;
    int best_a = a, best_b = b;
    for (int x = 0; x < problem_.choices(edge.a); ++x) {
      if (std::isinf(of_a[at(x)])) continue;
      for (int y = 0; y < problem_.choices(edge.b); ++y)
        if (const double cost = value(x, y); cost < best) {
          best = cost;
          best_a = x;
          best_b = y;
        }
    }
    if (!accept(before, best)) return false;
    a = best_a;
    b = best_b;
    now_.memory = others + memory_of(edge.a, a) + memory_of(edge.b, b);
    return true;
  }

  const SearchProblem& problem_;
  const double penalty_;
  std::vector<std::vector<const SearchProblem::Edge*>> edges_of_;
  Assignment now_;
};

/// Descends from every start with one penalty. Returns the best that fits, and the best whatever it takes.
struct Best {
  Assignment fitting, any;
};
Best descend_all(const SearchProblem& problem, const std::vector<std::vector<int>>& starts, bool pairs, double penalty,
                 int threads) {
  std::vector<Assignment> ends(starts.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < starts.size(); i = next++) ends[i] = Descent(problem, starts[i], penalty).run(pairs);
  };
  {
    std::vector<std::jthread> helpers;
    for (int i = 1; i < threads; ++i) helpers.emplace_back(work);
    work();
  }
  Best best;
  int sweeps = 0;
  for (const Assignment& end : ends) {
    sweeps = std::max(sweeps, end.sweeps);
    if (is_better(end, best.any)) best.any = end;
    if (end.memory <= problem.cap && is_better(end, best.fitting)) best.fitting = end;
  }
  best.fitting.sweeps = best.any.sweeps = sweeps;
  return best;
}

/// Moves every pair of variables, neighbours or not, as long as that helps and fits.
Assignment polish(const SearchProblem& problem, Assignment best) {
  const int sweeps = best.sweeps;
  for (int i = 0; i < problem.variables(); ++i)
    for (int j = i + 1; j < problem.variables(); ++j) {
      if (double(problem.choices(i)) * problem.choices(j) > 1e5) continue;
      std::vector<int> trial = best.choices;
      for (int x = 0; x < problem.choices(i); ++x)
        for (int y = 0; y < problem.choices(j); ++y) {
          trial[at(i)] = x;
          trial[at(j)] = y;
          const Assignment other = evaluate(problem, trial);
          if (other.memory <= problem.cap && is_better(other, best)) best = other;
        }
    }
  best.sweeps = sweeps;
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

Assignment forest_dp(const SearchProblem& problem, int conditioned) {
  // Orders the variables so that each has at most one neighbour before it: its parent.
  const int n = problem.variables();
  struct Link {
    int parent = -1;
    const SearchProblem::Edge* edge = nullptr;
  };
  std::vector<Link> links(at(n));
  std::vector<int> order;
  std::vector<char> seen(at(n), 0);
  if (conditioned >= 0) seen[at(conditioned)] = 1;
  for (int root = 0; root < n; ++root) {
    if (seen[at(root)] != 0) continue;
    seen[at(root)] = 1;
    order.push_back(root);
    for (size_t next = order.size() - 1; next < order.size(); ++next)
      for (const SearchProblem::Edge& edge : problem.edges) {
        const int here = order[next];
        if ((edge.a != here && edge.b != here) || &edge == links[at(here)].edge) continue;
        const int other = edge.a == here ? edge.b : edge.a;
        if (other == conditioned) continue;
        TRAINER_CHECK(seen[at(other)] == 0, "a graph with a cycle through variables {} and {}", here, other);
        seen[at(other)] = 1;
        links[at(other)] = {here, &edge};
        order.push_back(other);
      }
  }
  Assignment best;
  for (int fixed = 0; fixed < (conditioned < 0 ? 1 : problem.choices(conditioned)); ++fixed) {
    std::vector<std::vector<double>> cost = problem.nodes;
    std::vector<std::vector<int>> taken(at(n));  // by the parent's choice
    for (const SearchProblem::Edge& edge : problem.edges) {
      if (conditioned < 0 || (edge.a != conditioned && edge.b != conditioned)) continue;
      const int other = edge.a == conditioned ? edge.b : edge.a;
      for (int choice = 0; choice < problem.choices(other); ++choice)
        cost[at(other)][at(choice)] +=
            edge.a == conditioned ? cost_of(edge, problem, fixed, choice) : cost_of(edge, problem, choice, fixed);
    }
    for (size_t i = order.size(); i-- > 0;) {
      const int child = order[i];
      const Link& link = links[at(child)];
      if (link.parent < 0) continue;
      taken[at(child)].resize(at(problem.choices(link.parent)));
      for (int above = 0; above < problem.choices(link.parent); ++above) {
        double least = kInfinity;
        for (int choice = 0; choice < problem.choices(child); ++choice) {
          const double total =
              cost[at(child)][at(choice)] + (link.edge->a == child ? cost_of(*link.edge, problem, choice, above)
                                                                   : cost_of(*link.edge, problem, above, choice));
          if (total >= least) continue;
          least = total;
          taken[at(child)][at(above)] = choice;
        }
        cost[at(link.parent)][at(above)] += least;
      }
    }
    std::vector<int> choices(at(n), 0);
    if (conditioned >= 0) choices[at(conditioned)] = fixed;
    for (const int variable : order) {
      const int parent = links[at(variable)].parent;
      const std::vector<double>& costs = cost[at(variable)];
      choices[at(variable)] = parent >= 0 ? taken[at(variable)][at(choices[at(parent)])]
                                          : static_cast<int>(std::ranges::min_element(costs) - costs.begin());
    }
    const Assignment now = evaluate(problem, std::move(choices));
    if (is_better(now, best)) best = now;
  }
  return best;
}

std::vector<std::vector<int>> default_starts(const SearchProblem& problem) {
  int most = 0;
  for (int i = 0; i < problem.variables(); ++i) most = std::max(most, problem.choices(i));
  const auto start = [&](int even, int odd) {
    std::vector<int> choices;
    for (int i = 0; i < problem.variables(); ++i)
      choices.push_back(std::min(i % 2 == 0 ? even : odd, problem.choices(i) - 1));
    return choices;
  };
  std::vector<std::vector<int>> starts;
  for (int u = 0; u < most; ++u) starts.push_back(start(u, u));
  for (int u = 0; u < most && most <= kMostAlternating; ++u)
    for (int v = 0; v < most; ++v)
      if (u != v) starts.push_back(start(u, v));
  return starts;
}

Assignment descend(const SearchProblem& problem, const DescentOptions& options) {
  const std::vector<std::vector<int>> starts = options.starts.empty() ? default_starts(problem) : options.starts;
  Best best = descend_all(problem, starts, options.pairs, 0, options.threads);
  if (best.fitting.found() && best.any.memory <= problem.cap) return best.fitting;
  // The least penalty with which something fits is between 0 and one at which memory is all that counts.
  double low = 0, high = 0, largest = 0;
  for (const std::vector<double>& node : problem.nodes)
    for (const double cost : node)
      if (!std::isinf(cost)) largest += std::abs(cost);
  for (const SearchProblem::Edge& edge : problem.edges)
    for (const double cost : edge.costs)
      if (!std::isinf(cost)) largest = std::max(largest, std::abs(cost) * static_cast<double>(problem.edges.size()));
  double range = 0;
  for (const std::vector<double>& node : problem.memory)
    range += *std::ranges::max_element(node) - *std::ranges::min_element(node);
  high = range > 0 ? 1e3 * largest / range : 0;
  Assignment fitting = best.fitting;
  for (int round = 0; round < kMostPenalties && high > 0; ++round) {
    const double penalty = round == 0 ? high : low == 0 ? high / 64 : std::sqrt(low * high);
    const Best trial = descend_all(problem, starts, options.pairs, penalty, options.threads);
    if (is_better(trial.fitting, fitting)) fitting = trial.fitting;
    if (trial.fitting.found()) {
      high = penalty;
    } else if (round == 0) {
      break;
    } else {
      low = penalty;
    }
  }
  return fitting.found() ? polish(problem, fitting) : fitting;
}

Assignment forest_dp_within(const SearchProblem& problem, int conditioned) {
  const Assignment free = forest_dp(problem, conditioned);
  if (!free.found() || free.memory <= problem.cap) return free;
  // The least multiplier with which the cheapest assignment fits is found by bisection on a logarithmic scale.
  Assignment best;
  const auto fits_with = [&](double multiplier) {
    SearchProblem relaxed = problem;
    for (size_t i = 0; i < relaxed.nodes.size(); ++i)
      for (size_t choice = 0; choice < relaxed.nodes[i].size(); ++choice)
        relaxed.nodes[i][choice] += multiplier * problem.memory[i][choice];
    const Assignment now = evaluate(problem, forest_dp(relaxed, conditioned).choices);
    if (now.memory <= problem.cap && is_better(now, best)) best = now;
    return now.memory <= problem.cap;
  };
  double low = 1e-6 * free.cost / free.memory, high = low;
  for (int raised = 0; !fits_with(high); ++raised) {
    if (raised == kMostPenalties) return best;
    high *= 32;
  }
  for (int round = 0; round < kMostPenalties && high / low > 1 + 1e-3; ++round) {
    const double middle = std::sqrt(low * high);
    (fits_with(middle) ? high : low) = middle;
  }
  return best;
}

Assignment search(const SearchProblem& problem, int conditioned, int threads) {
  double assignments = 1;
  for (int i = 0; i < problem.variables(); ++i) assignments *= problem.choices(i);
  if (assignments <= kExhaustive) return exhaustive(problem);
  const Assignment exact = forest_dp(problem, conditioned);
  if (!exact.found() || exact.memory <= problem.cap) return exact;
  std::vector<int> least;
  for (const std::vector<double>& node : problem.memory)
    least.push_back(static_cast<int>(std::ranges::min_element(node) - node.begin()));
  if (evaluate(problem, least).memory > problem.cap) return {};
  const Assignment within = forest_dp_within(problem, conditioned);
  DescentOptions options{.starts = {exact.choices, std::move(least)}, .threads = threads};
  if (within.found()) options.starts.push_back(within.choices);
  const Assignment found = descend(problem, options);
  return is_better(within, found) ? within : found;
}

}  // namespace trainer::plan
